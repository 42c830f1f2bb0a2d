"""Viewkeeper: SQL materialized views over key-value stores, kept fresh incrementally.

    put/delete ─▶ store + change log ─▶ capture ─▶ Δ ─▶ maintenance plan ─▶ commit ─▶ view tables ─▶ reads

The packages follow the data path, in order:

    model      types, schemas, deltas, key and row bytes, the catalog
    store      1  stores of rows and the change log (LMDB; RocksDB; HBase)
    operators  2  incremental operators: deltas in, deltas out, over arrangements
    plan       3  SQL, analysed by Spark's Catalyst, compiled to a dataflow of operators
    capture    4  deltas from the log, or from a scan
    runtime    5  the dataflow run in the driver, or on Spark
    commit     6  files and view changes become the published batch
    maintain   7  batches, loads, schedules and definitions, in order
    read       8  get, scan, read at a freshness level; snapshots, subscriptions, status
    database   the public surface over all of them; opening opens a database
    client     the same surface over HTTP, for a database that `vk serve` serves

Open a database with `open`, or connect to a server with `connect`; everything else is a method of the result.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewkeeper.client.async_client import AsyncClient, connect_async
    from viewkeeper.client.client import Client, connect
    from viewkeeper.commit.backup import restore
    from viewkeeper.commit.batch_history import BatchReport
    from viewkeeper.database import Database
    from viewkeeper.errors import ViewkeeperError
    from viewkeeper.maintain.continuous import Maintenance
    from viewkeeper.model.token import Token
    from viewkeeper.opening import open_database as open
    from viewkeeper.read.audit.doctor import Examination
    from viewkeeper.read.audit.report import Audit
    from viewkeeper.read.freshness import ANY, LATEST
    from viewkeeper.read.snapshot import Snapshot
    from viewkeeper.read.status import Status
    from viewkeeper.read.subscribe import Delta

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "LATEST",
    "STALE",
    "AsyncClient",
    "Audit",
    "BatchReport",
    "Client",
    "Database",
    "Delta",
    "Examination",
    "Maintenance",
    "Snapshot",
    "Status",
    "Token",
    "ViewkeeperError",
    "__version__",
    "connect",
    "connect_async",
    "open",
    "restore",
]

_PLACES = {
    "ANY": ("viewkeeper.read.freshness", "ANY"),
    "STALE": ("viewkeeper.read.freshness", "STALE"),
    "LATEST": ("viewkeeper.read.freshness", "LATEST"),
    "Audit": ("viewkeeper.read.audit.report", "Audit"),
    "AsyncClient": ("viewkeeper.client.async_client", "AsyncClient"),
    "Client": ("viewkeeper.client.client", "Client"),
    "connect": ("viewkeeper.client.client", "connect"),
    "connect_async": ("viewkeeper.client.async_client", "connect_async"),
    "BatchReport": ("viewkeeper.commit.batch_history", "BatchReport"),
    "Database": ("viewkeeper.database", "Database"),
    "Delta": ("viewkeeper.read.subscribe", "Delta"),
    "Examination": ("viewkeeper.read.audit.doctor", "Examination"),
    "Maintenance": ("viewkeeper.maintain.continuous", "Maintenance"),
    "Snapshot": ("viewkeeper.read.snapshot", "Snapshot"),
    "Status": ("viewkeeper.read.status", "Status"),
    "Token": ("viewkeeper.model.token", "Token"),
    "ViewkeeperError": ("viewkeeper.errors", "ViewkeeperError"),
    "open": ("viewkeeper.opening", "open_database"),
    "restore": ("viewkeeper.commit.backup", "restore"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a command that only reads does not load the whole engine."""
    if name == "spark":
        return import_module("viewkeeper.spark")
    if name not in _PLACES:
        raise AttributeError(f"module 'viewkeeper' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
