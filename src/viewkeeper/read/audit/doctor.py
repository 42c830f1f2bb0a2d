"""Doctor: check the state of a database and say what to do about problems. It changes nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from viewkeeper import expressions
from viewkeeper.commit.batch_history import REPAIR_NOTE
from viewkeeper.commit.deferred_cleanup import CLEANUP_NOTE as AFTERWARDS
from viewkeeper.commit.deferred_cleanup import describe_cleanup_note
from viewkeeper.errors import CorruptState, ViewkeeperError
from viewkeeper.maintain.continuous import MAINTENANCE_NOTE as MAINTENANCE
from viewkeeper.maintain.load.repair import CONTRADICTION_NOTE, find_damaged_runs
from viewkeeper.model.display import count_text
from viewkeeper.read.audit.report import AUDIT_NOTE as AUDIT
from viewkeeper.read.audit.report import describe_audit_note
from viewkeeper.read.status import database_status
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.store import Batch, Finding, Store

_LIBRARIES = ("viewkeeper", "duckdb", "pyarrow", "pyspark", "lmdb")
_STORE_LIBRARIES = {"rocksdb": "rocksdict", "hbase": "thriftpy2"}


@dataclass(frozen=True)
class Examination:
    """The findings of all checks: each is `ok`, or says what is wrong and what to do."""

    url: str
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(f.ok for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"healthy": self.healthy}


def examine(store: Store) -> Examination:
    """Run every check, whatever the others find."""
    checks: list[Callable[[Store], Iterator[Finding]]] = [_versions, Store.examine, _state, _views, _notes]
    found: list[Finding] = []
    for check in checks:
        try:
            found.extend(store.examine() if check is Store.examine else check(store))
        except ViewkeeperError as error:
            if not any(error.message in f.message for f in found):
                found.append(Finding(check.__name__.strip("_"), False, error.message, error.hint))
    return Examination(store.url, tuple(found))


def _versions(store: Store) -> Iterator[Finding]:
    store_library = _STORE_LIBRARIES.get(store.url.partition(":")[0])
    versions = [f"{name} {_version(name)}" for name in (*_LIBRARIES, *([store_library] if store_library else []))]
    yield Finding("versions", True, ", ".join([f"Python {platform.python_version()}", *versions]))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _state(store: Store) -> Iterator[Finding]:
    """Check the runs that the batch record lists, and find files that it does not list."""
    batch = _published_batch(store)
    directory = StateDirectory(store.state_path)
    yield from _find_unfinished_loads(Path(directory))
    if batch is None or not directory.exists():
        yield Finding("state", True, "there is none yet")
        return
    manifests = [Manifest.from_json(m) for m in (batch.record["manifest"], *batch.record.get("sets", {}).values())]
    fingerprint = manifests[0].fingerprint
    if fingerprint == expressions.fingerprint():
        yield Finding("fingerprint", True, f"state was made with {fingerprint}")
    else:
        text = f"state was made with {fingerprint}, this is {expressions.fingerprint()}"
        yield Finding("fingerprint", False, text, "Refresh: it is made anew from the tables.")
    bad = {e: d for m in manifests for e, d in find_damaged_runs(OpenState(store.state_path, m)).items()}
    # A batch published meanwhile may have replaced files: those are not damaged but obsolete.
    now = _published_batch(store)
    if bad and now is not None and now.number == batch.number:
        for damage in dict.fromkeys(d.message for d in bad.values()):
            yield Finding("state files", False, damage, "Refresh: it is made anew from the tables.")
    else:
        runs = sum(len(r) for m in manifests for r in m.runs.values())
        size = sum(e.length for m in manifests for r in m.runs.values() for e in r)
        yield Finding("state files", True, f"{runs} runs, {size / 1e6:.1f} MB; every checksum is right")
    named = frozenset().union(*(m.files() for m in manifests))
    orphans = [directory / name for name in directory.list_names("*.vkr") if name not in named]
    if orphans:
        text = f"{len(orphans)} files, {sum(_file_size(p) for p in orphans) / 1e6:.1f} MB, that no batch lists"
        # No reader uses them. A maintainer writes files before it lists them, and removes others shortly afterwards.
        busy = store.lease_holder() is not None
        yield Finding("orphaned files", True, text, "" if busy else "The next maintainer removes them: vk refresh.")
    else:
        yield Finding("orphaned files", True, "none")


def _find_unfinished_loads(directory: Path) -> Iterator[Finding]:
    """Parts of tables that an interrupted CREATE has read and the next one will not read again."""
    parts = list(directory.glob("load-*.vkp"))
    if parts:
        text = f"{len(parts)} parts of tables, {sum(_file_size(p) for p in parts) / 1e6:.1f} MB, kept for a day"
        yield Finding("unfinished load", True, f"{text}; give the statement again to go on")


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _published_batch(store: Store) -> Batch | None:
    try:
        return store.published_batch()
    except CorruptState:
        return None  # the store's own examination reports it


def _views(store: Store) -> Iterator[Finding]:
    status = database_status(store, store.catalog())
    for view in status.views:
        if view.suspended is not None:
            advice = f"Correct the rows, then: ALTER MATERIALIZED VIEW {view.name} RESUME."
            yield Finding(f"view {view.name}", False, f"it is suspended: {view.suspended}", advice)
    behind = status.lag_changes > 0 and status.maintainer is None
    views, changes = count_text(len(status.views), "view"), count_text(status.lag_changes, "change")
    text = f"{views}, {changes} behind ({status.lag_seconds:.0f} s)"
    yield Finding("freshness", not behind, text, "Nobody maintains: vk refresh or vk run." if behind else "")


def _notes(store: Store) -> Iterator[Finding]:
    failed = store.note(MAINTENANCE)
    if failed is not None:
        yield Finding(
            "maintenance", False, f"{_age_text(failed)} it failed: {failed['error']}", "Correct that, then vk run."
        )
    contradiction = store.note(CONTRADICTION_NOTE)
    if contradiction is not None:
        text = f"{_age_text(contradiction)} it contradicted itself: {contradiction['error']}"
        yield Finding("state", False, text, "vk audit --repair makes all of it anew.")
    cleanup = describe_cleanup_note(store.note(AFTERWARDS))
    if cleanup is not None:
        text = f"{_age_text(store.note(AFTERWARDS))} it failed, after batches that are published: {cleanup}"
        yield Finding("clean-up", False, text, "Correct the cause; it is tried again after every batch.")
    repair = store.note(REPAIR_NOTE)
    if repair is not None:
        times = repair.get("count", 1)
        times_text = f" ({times} times in all)" if times > 1 else ""
        text = f"{_age_text(repair)} state was made anew{times_text}: {'; '.join(repair['damage'])}"
        yield Finding("mended", True, text, "Look at the disk if it happens again.")
    audited = store.note(AUDIT)
    if audited is None:
        yield Finding("audit", True, "there was none yet", "vk audit compares the views with Spark.")
    else:
        ok, text, advice = describe_audit_note(audited)
        yield Finding("audit", ok, f"{_age_text(audited)} {text}", advice)


def _age_text(note: Any) -> str:
    return f"{max(0.0, time.time() - note['time']):.0f} s ago"
