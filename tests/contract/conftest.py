"""The stores that the suite runs over. A store is added by a way to open it: `STORES[name] = opener`.

An opener takes a directory of its own and the test's request, and gives `open(mode="w", **options) -> Store` for one
database that does not exist yet. Tests that need a capability ask the store for it, and are skipped without it.
What a store says about a call depends on what it can know:

    with before-images      `changed` counts rows that really changed, and a call that changes nothing has no position;
                            without, it may count more
    with atomic batches     positions count calls: 1, 2, 3; else they are times, and only rise
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.limited import LIMITED

import viewkeeper as vk
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.contract.store import Store, WriteResult
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.store.registry import open_store

Opener = Callable[..., Store]


def _lmdb(directory: Path, request: pytest.FixtureRequest) -> Opener:
    def open_again(mode: str = "w", **options: Any) -> Store:
        return open_store(f"lmdb:{directory / 'db'}", mode, **options)

    return open_again


def _rocksdb(directory: Path, request: pytest.FixtureRequest) -> Opener:
    def open_again(mode: str = "w", **options: Any) -> Store:
        return open_store(f"rocksdb:{directory / 'db'}", mode, **options)

    return open_again


def _hbase(directory: Path, request: pytest.FixtureRequest) -> Opener:
    from viewkeeper_hbase.thrift.client import HBaseClient
    from viewkeeper_hbase.thrift.connection import Gateway

    server = request.getfixturevalue("hbase")
    namespace = f"vk_{secrets.token_hex(4)}"
    with HBaseClient(Gateway(server.host, server.port)) as client:
        client.admin.create_namespace(namespace)

    def open_again(mode: str = "w", **options: Any) -> Store:
        # Without a cache: these tests look at one another's changes at once.
        options = {"state": str(directory / "state"), "cache": 0, **options}
        return open_store(f"hbase://{server.host}:{server.port}/{namespace}", mode, **options)

    return open_again


def _limited(kind: type[LmdbStore]) -> Callable[[Path, pytest.FixtureRequest], Opener]:
    def opener(directory: Path, request: pytest.FixtureRequest) -> Opener:
        def open_again(mode: str = "w", **options: Any) -> Store:
            return kind(directory / "db", mode, **options)

        return open_again

    return opener


def _small_hbase(directory: Path, request: pytest.FixtureRequest) -> Opener:
    from tests.contract.small_hbase import SmallHBase

    server = SmallHBase()
    request.addfinalizer(server.close)

    def open_again(mode: str = "w", **options: Any) -> Store:
        options = {"state": str(directory / "state"), "cache": 0, "create": True, **options}
        return open_store(f"hbase://{server.host}:{server.port}/small", mode, **options)

    return open_again


def _pushed_hbase(directory: Path, request: pytest.FixtureRequest) -> Opener:
    """The same, and it pushes what is written: `tests.contract.pushing`."""
    from tests.contract.pushing import pushing

    server = pushing(directory, request)

    def open_again(mode: str = "w", **options: Any) -> Store:
        options = {"state": str(directory / "state"), "cache": 0, "create": True, **options}
        store: Any = open_store(f"hbase://{server.small.host}:{server.small.port}/small", mode, **options)
        if mode == "w":
            server.enable_push(store)
            store._push_attachment.begin()  # as who maintains does
        return store

    return open_again


@contextmanager
def databases(kind: str, directory: Path) -> Iterator[Callable[..., Any]]:
    """Opens one database of a kind ("lmdb", "rocksdb", or "hbase": a small one) again and again, and closes them."""
    settings: dict[str, Any] = {"url": f"{kind}:{directory / 'shop'}", "durability": "none"}
    opened: list[Any] = []
    with ExitStack() as left:
        if kind == "hbase":
            from tests.contract.small_hbase import SmallHBase

            server = left.enter_context(closing(SmallHBase()))
            url = f"hbase://{server.host}:{server.port}/small"
            settings = {"url": url, "state": str(directory / "state"), "create": True}

        def make(**options: Any) -> Any:
            opened.append(vk.open(**settings, **options))
            return opened[-1]

        yield make
        for db in reversed(opened):
            db.close()


@contextmanager
def planned_shop(request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty database of the kind that the test's parameter says, maybe with state behind a URL; no JVM starts."""
    from tests.contract import planned

    from viewkeeper.database import Database

    kind, _, remote = request.param.partition(", ")
    planned.install(monkeypatch.setattr)
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    (directory / "there").mkdir()
    options = {"state": f"file://{directory / 'there'}"} if remote else {}
    store = STORES[kind](directory, request)(**options)
    with Database(store, mode="w", spark=None, progress=None, retention=0.0) as db:
        yield db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture(params=["lmdb", "hbase"])
def open_db(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """A store that counts calls and knows what rows were, and one that has times and knows what they are."""
    from tests.contract import planned

    planned.install(monkeypatch.setattr)
    with databases(request.param, tmp_path) as make:
        yield make


STORES: dict[str, Callable[[Path, pytest.FixtureRequest], Opener]] = {
    "lmdb": _lmdb,
    "rocksdb": _rocksdb,
    **{name: _limited(kind) for name, kind in LIMITED.items()},
    "atomic rows only": _small_hbase,
    "pushed": _pushed_hbase,
    "hbase": _hbase,
}
MARKS = {"hbase": [pytest.mark.hbase, pytest.mark.slow]}

ITEMS = Table(
    1,
    "items",
    (
        Column("id", types.BIGINT, nullable=False),
        Column("category", types.STRING),
        Column("price", types.decimal(12, 2)),
        Column("seen", types.TIMESTAMP),
    ),
    (KeyPart("id"),),
)
PAIRS = Table(
    2,
    "pairs",
    (Column("word", types.STRING), Column("n", types.INT), Column("note", types.STRING)),
    (KeyPart("word"), KeyPart("n", descending=True, nulls_last=True)),
)


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in STORES])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens one database, as often as wanted; all are closed at the end."""
    opened: list[Store] = []
    inner = STORES[request.param](tmp_path, request)

    def open_again(mode: str = "w", **options: Any) -> Store:
        store = inner(mode, **options)
        opened.append(store)
        return store

    yield open_again
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    """An empty database with the tables ITEMS and PAIRS in its catalog."""
    opened = opener()
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS).with_table(PAIRS))
    return opened


def items(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows of ITEMS, short ones filled with NULL."""
    filled = [(*row, None, None, None)[:4] for row in rows]
    return pa.table([[row[at] for row in filled] for at in range(4)], schema=ITEMS.arrow)


def ids(*keys: int) -> pa.Table:
    """Keys of ITEMS."""
    return pa.table({"id": pa.array(keys, pa.int64())})


def pairs(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows of PAIRS."""
    return pa.table([[row[at] for row in rows] for at in range(3)], schema=PAIRS.arrow)


def put(store: Store, rows: pa.Table, table: Table = ITEMS) -> int:
    """Put rows; the call's position."""
    return store.write(table, rows, rows.slice(0, 0).select([c.name for c in table.key_columns])).position


def delete(store: Store, keys: pa.Table, table: Table = ITEMS) -> int:
    """Delete keys; the call's position."""
    return store.write(table, table.arrow.empty_table(), keys).position


def read(store: Store, table: Table = ITEMS, **options: Any) -> list[dict[str, Any]]:
    """A scan as Python rows."""
    return [row for batch in store.scan(table, **options) for row in batch.to_pylist()]


def summed(delta: pa.Table) -> dict[tuple[Any, ...], int]:
    """A delta consolidated: the weight of each row, zeros dropped."""
    total: dict[tuple[Any, ...], int] = {}
    for row in delta.to_pylist():
        weight = row.pop("¤w")
        key = tuple(row.values())
        total[key] = total.get(key, 0) + weight
    return {row: weight for row, weight in total.items() if weight}


def assert_changed(store: Store, written: WriteResult, expected: int, written_rows: int) -> None:
    """How many rows of a call really changed, which a store without before-images may not know."""
    if store.capabilities.before_images:
        assert written.changed_rows == expected
    else:
        assert expected <= written.changed_rows <= written_rows


def skip_if_small(store: Store) -> None:
    if store.url.endswith("/small") or "/small?" in store.url:
        pytest.skip("the real HBase is given many rows")


def emptied(store: Store, table: Table) -> None:
    """Delete all rows."""
    keys = pa.Table.from_batches(store.scan(table), table.arrow).select([c.name for c in table.key_columns])
    store.write(table, table.arrow.empty_table(), keys)


def no_change(catalog: Catalog) -> Catalog:
    return catalog


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """How to open a database with rows and views, in this process or in another (`programs.run`)."""
    from tests.contract import planned
    from tests.contract.small_hbase import SmallHBase

    planned.install(monkeypatch.setattr)
    with closing(SmallHBase()) as server:
        found: dict[str, Any] = {"url": f"{request.param}:{tmp_path / 'shop'}", "durability": "none"}
        if request.param == "hbase":
            url = f"hbase://{server.host}:{server.port}/small"
            found = {"url": url, "state": str(tmp_path / "state"), "create": True}
        with vk.open(**found) as db:
            planned.fill(db, 1000, "totals", "bosses")
        yield found
