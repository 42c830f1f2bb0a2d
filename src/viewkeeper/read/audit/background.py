"""Audit and repair of an open database, on request or in the background beside the batches.

    1  compare the views with Spark
    2  with `repair`: rebuild those that differ, with the state behind them, and compare these views again in full
    3  note the views that still differ

A repair that fails, or after which a view still differs, is reported for each such view; the others are repaired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from viewkeeper.errors import ViewkeeperError
from viewkeeper.read.audit.audit import audit
from viewkeeper.read.audit.report import AUDIT_NOTE, Audit, audit_note, failure_note, with_repair
from viewkeeper.store.contract.store import Store

if TYPE_CHECKING:
    from viewkeeper.maintain.maintainer import Maintainer

_log = logging.getLogger("viewkeeper.audit")


def audit_database(
    store: Store,
    session: Callable[[], Any],
    get_maintainer: Callable[[], Maintainer],
    names: Sequence[str] = (),
    *,
    sample: int | None = None,
    repair: bool = False,
    note: bool = True,
) -> Audit:
    """Compare these views (all, if none is named), and repair them if `repair` is set."""
    report = audit(store, session, names, sample)
    if repair:
        report = _repair_and_compare(store, session, get_maintainer, report)
    if note:
        store.put_note(AUDIT_NOTE, audit_note(report))
    return report


def _repair_and_compare(
    store: Store, session: Callable[[], Any], get_maintainer: Callable[[], Maintainer], report: Audit
) -> Audit:
    from viewkeeper.maintain.load.repair import CONTRADICTION_NOTE

    wrong = [v.view for v in report.views if v.differences]
    contradicted = store.note(CONTRADICTION_NOTE) is not None
    if not wrong and not contradicted:
        return report
    maintainer = get_maintainer()
    try:
        if contradicted:
            maintainer.suspender.run_without_failing(maintainer.state_repair.rebuild)
        else:
            maintainer.repair(frozenset(store.catalog().view(name).table.storage_id for name in wrong))
    except ViewkeeperError as error:
        if not wrong:
            raise
        return with_repair(report, {}, str(error))
    remaining = audit(store, session, wrong).views if wrong else ()
    return with_repair(report, {v.view: v.differences for v in remaining}, None)


def audit_in_background(
    store: Store, get_audit: Callable[[], Callable[[], Audit] | None], listener: Callable[[Audit], None] | None
) -> None:
    """Run an audit beside the batches, as long as the handle that it belongs to exists. Differences are logged; a
    failed audit is noted for `status` and `doctor`."""
    run = get_audit()
    if run is None:
        return
    try:
        report = run()
    except Exception as error:
        _log.exception("The audit of %s failed", store.url)
        store.put_note(AUDIT_NOTE, failure_note(error))
        return
    for view in (v for v in report.views if v.is_wrong):
        _log.error("%s of %s: %d keys differ. %s", view.view, store.url, view.differences, view.advice)
    if listener is not None:
        listener(report)
