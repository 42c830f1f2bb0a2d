"""`vk doctor` on HBase: the gateway, the tables, an unfinished batch, push capture and rejected rows."""

from __future__ import annotations

import time
from collections.abc import Iterator

from viewkeeper.errors import CorruptState, ViewkeeperError
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.display import count_text
from viewkeeper.model.schema import Table
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.store import Finding
from viewkeeper.store.redo import redo_file
from viewkeeper_hbase import lease
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.layout.mapping import check_mapping
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push import settings
from viewkeeper_hbase.push.settings import PushAgreement
from viewkeeper_hbase.rejected_rows import RejectedRows
from viewkeeper_hbase.thrift.client import HBaseClient


def examine_database(
    client: HBaseClient, meta_table: MetaTable, layouts: Layouts, redo: StateDirectory
) -> Iterator[Finding]:
    """Check what is specific to HBase; nothing is changed."""
    started = time.perf_counter()
    meta_table.read_state()
    milliseconds = 1000 * (time.perf_counter() - started)
    yield Finding("gateway", True, f"{client.pool.gateway.address} answers in {milliseconds:.1f} ms")
    catalog, _ = meta_table.read_consistent()  # raises if the records are damaged
    yield Finding(
        "records",
        True,
        f"defined: {count_text(len(catalog.tables), 'table')}, {count_text(len(catalog.views), 'view')}",
    )
    yield from _check_tables(client, layouts, catalog)
    yield from _check_claim(meta_table, redo)
    yield from _check_push(meta_table, layouts, catalog)
    for table in catalog.tables:
        if rows := RejectedRows(meta_table).list_rows(table):
            text = f"{len(rows)} rows of {table.name} cannot be read; the first: {rows[0].key!r}, {rows[0].reason}"
            yield Finding("rejects", False, text, "Correct these rows, or the mapping of the table.")


def _check_tables(client: HBaseClient, layouts: Layouts, catalog: Catalog) -> Iterator[Finding]:
    found = [finding for table in catalog.tables for finding in _check_table(client, layouts, table)]
    yield from found
    if not found:
        yield Finding("tables", True, "each is as it was mapped or made")


def _check_table(client: HBaseClient, layouts: Layouts, table: Table) -> Iterator[Finding]:
    layout = layouts.layout_of(table)
    try:
        described = client.admin.describe(layout.name)
        if layout.is_owned:
            family, expected = described.family(layout.families[0]), layout.column_family()
            versions = (family.max_versions or 1) if family is not None and family.keep_deleted_cells else 0
            if versions < (expected.max_versions or 1):
                text = f"{layout.name} keeps {versions} versions of rows and deleted cells, not {expected.max_versions}"
                advice = (
                    f"Set VERSIONS => {expected.max_versions} and KEEP_DELETED_CELLS => 'TRUE' again, then vk audit."
                )
                yield Finding("tables", False, text, advice)
        else:
            for warning in check_mapping(layout, described):
                yield Finding("tables", True, warning, "vk audit finds what capture cannot.")
    except ViewkeeperError as error:
        if not layout.is_owned or client.admin.exists(layout.name):
            yield Finding("tables", False, error.message, error.hint)


def _check_push(meta_table: MetaTable, layouts: Layouts, catalog: Catalog) -> Iterator[Finding]:
    note, status = meta_table.read_note(settings.AGREEMENT_NOTE), meta_table.read_note(settings.STATUS_NOTE)
    if note is None:
        return
    agreement = PushAgreement.from_json(note)
    names = [layouts.layout_of(table).name for table in catalog.tables]
    if uncovered := sorted(name for name in names if not agreement.is_covered(name)):
        text = f"the peer {agreement.peer} does not cover {', '.join(uncovered)}: windows of time are scanned there"
        yield Finding("push", False, text, "Call vk hbase push enable again.")
    if status is None:
        yield Finding(
            "push", True, f"the peer {agreement.peer} is agreed; nobody maintains, and HBase may keep its WALs"
        )
    elif status["by"] != "push":
        text = f"it cannot be shown that all has come, and windows of time are scanned: {status['reason']}"
        yield Finding("push", False, text, "vk hbase push status shows the queues.")
    else:
        yield Finding("push", True, f"HBase pushes, through the peer {agreement.peer}")


def _check_claim(meta_table: MetaTable, redo: StateDirectory) -> Iterator[Finding]:
    claim = meta_table.read_state().claim
    if claim is None:
        yield Finding("commit", True, "no batch is half done")
        return
    holder = lease.lease_holder(meta_table)
    text = f"batch {claim.number} was begun by {claim.owner} and is not published"
    if holder is not None:
        yield Finding("commit", True, f"{text}; {holder} maintains")
        return
    try:
        redo_file.read_redo(redo, claim.file, claim.digest)
    except CorruptState as damage:
        yield Finding("commit", False, f"{text}. {damage.message}", damage.hint)
    else:
        yield Finding("commit", False, text, "The next maintainer finishes it: vk refresh.")
