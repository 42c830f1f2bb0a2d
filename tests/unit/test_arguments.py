"""Every public method says of a wrong argument what is wrong with it: never an AttributeError out of the depth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.database import Database


class Thing:
    """Of no type that is asked for; printed the same by every process, so that workers agree about the tests' names."""

    def __repr__(self) -> str:
        return "Thing()"


ODD: tuple[Any, ...] = (None, 5, 5.5, -1, True, math.nan, b"x", [], {}, ("a",), Thing(), "nonsense")
TIMES, COUNTS = (5, 5.5), (5,)

# Method, how it is called rightly, and for each argument what of ODD is right too.
CALLS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "put": ({"table": "t", "rows": {"k": 1, "v": 1}}, {"table": (), "rows": ([],)}),
    "delete": ({"table": "t", "keys": 1}, {"table": (), "keys": (5, -1, [])}),
    "update": ({"table": "t", "key": 1, "columns": {"v": 2}}, {"table": (), "key": (), "columns": ()}),
    "sql": ({"text": "SHOW TABLES"}, {"text": (), "engine": (), "stale": ODD}),
    "create_views": ({"views": {}}, {"views": ({},)}),
    "drop_views": ({"names": []}, {"names": ([],)}),
    "get": (
        {"name": "t", "key": 1},
        {"name": (), "key": (None, 5, -1), "level": (), "after": (None, []), "timeout": TIMES},
    ),
    "scan": (
        {"name": "t"},
        {
            "name": (),
            "prefix": (None, 5, -1),
            "start": (None, 5, -1),
            "stop": (None, 5, -1),
            "limit": (None, *COUNTS),
            "level": (),
            "where": (None, {}),
            "columns": (None,),
            "order_by": (None, []),
            "after": (None, []),
            "timeout": TIMES,
        },
    ),
    "read": (
        {"name": "t"},
        {
            "name": (),
            "level": (),
            "where": (None, {}),
            "columns": (None,),
            "order_by": (None, []),
            "limit": (None, *COUNTS),
            "after": (None, []),
            "timeout": TIMES,
        },
    ),
    "cluster": (
        {"name": "page", "key": 1},
        {"name": (), "key": (None, 5, -1), "level": (), "after": (None, []), "timeout": TIMES},
    ),
    "join": (
        {"name": "page", "key": 1},
        {"name": (), "key": (None, 5, -1), "how": ({},), "level": (), "after": (None, []), "timeout": TIMES},
    ),
    "subscribe": (
        {"name": "t", "timeout": 0},
        {
            "name": (),
            "since": (None, []),
            "timeout": (None, *TIMES),
            "progress": (None, *TIMES),
            "keep": (None,),
            "stale": ODD,
        },
    ),
    "explain": ({"view": "t"}, {"view": ()}),
    "token": ({"name": "t"}, {"name": (None,)}),
    "refresh": ({}, {"lane": (), "suspend": ODD}),
    "audit": ({}, {"sample": (None, *COUNTS), "repair": ODD}),
    "snapshot": ({}, {"max_age": TIMES, "mixed": ODD}),
    "maintain": (
        {},
        {
            "max_delay": TIMES,
            "max_changes": COUNTS,
            "priority": (),
            "max_lag": (None, *COUNTS),
            "retries": COUNTS,
            "lane": (),
            "audit_every": (None, *TIMES),
            "standby": ODD,
            "on_batch": ODD,
            "on_audit": ODD,
        },
    ),
    "table": ({"name": "t"}, {"name": ()}),
    "tables": ({}, {}),
    "views": ({}, {}),
    "indexes": ({}, {}),
    "backup": ({"directory": "."}, {"directory": ("nonsense",)}),
    "doctor": ({}, {}),
    "status": ({}, {}),
    "close": ({}, {}),
}


def _one(value: Any, among: tuple[Any, ...]) -> bool:
    return any(value is one or (type(value) is type(one) and value == one) for one in among)


CASES = [
    pytest.param(method, given | {argument: value}, id=f"{method}-{argument}-{value!r}"[:60])
    for method, (given, arguments) in CALLS.items()
    for argument, right in arguments.items()
    for value in ODD
    if not _one(value, right)
]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with vk.open(tmp_path_factory.mktemp("arguments") / "db") as opened:
        opened.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
        opened.put("t", {"k": 1, "v": 1})
        opened.sql("CREATE TABLE u (k INT, PRIMARY KEY (k))")
        opened.sql("CREATE MATERIALIZED VIEW page CLUSTER BY (k) OF t, u")
        yield opened


@pytest.mark.parametrize(("method", "given"), CASES)
def test_a_wrong_argument_is_an_error_of_ours(method: str, given: dict[str, Any], db: Any) -> None:
    with pytest.raises(vk.ViewkeeperError) as error:
        getattr(db, method)(**given)
    assert error.value.message
    assert "object has no attribute" not in error.value.message
    assert db.read("t").to_pylist() == [{"k": 1, "v": 1}]


def test_every_public_method_and_argument_is_in_the_table() -> None:
    methods = {n: m for n, m in inspect.getmembers(Database, inspect.isfunction) if not n.startswith("_")}
    assert methods.keys() == CALLS.keys()
    for name, method in methods.items():
        known = {*CALLS[name][0], *CALLS[name][1]}
        plain = [
            p for p in inspect.signature(method).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        assert {p.name for p in plain if p.name != "self"} == known, name


@pytest.mark.parametrize("view", ODD)
def test_views_to_audit_are_named_by_texts(view: Any, db: Any) -> None:
    with pytest.raises(vk.ViewkeeperError):
        db.audit(view)


@pytest.mark.parametrize("url", [u for u in ODD if not isinstance(u, str)])
def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(vk.ViewkeeperError, match="URL is a text"):
        vk.open(url)


@pytest.mark.parametrize(
    "options",
    [{"mode": 5}, {"retention": "x"}, {"retention": True}, {"retention": math.nan}, {"spark": 5}, {"progress": 5},
     {"memory": []}, {"durability": 5}, {"nonsense": 1}],
    ids=str,
)  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_is_made(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(vk.ViewkeeperError):
        vk.open(f"lmdb:{tmp_path / 'db'}", **options)
    assert not (tmp_path / "db").exists()


def test_a_path_opens_the_database_there(tmp_path: Path) -> None:
    with vk.open(tmp_path / "db") as made:
        made.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
    with vk.open(f"lmdb:{tmp_path / 'db'}", mode="r") as again:
        assert again.sql("SHOW TABLES").num_rows == 1
    with vk.open(Path(f"lmdb:{tmp_path / 'db'}"), mode="r") as third:
        assert third.sql("SHOW TABLES").num_rows == 1


@pytest.mark.parametrize("value", ODD)
def test_snapshots_and_tokens_say_it_too(value: Any, db: Any) -> None:
    with pytest.raises(vk.ViewkeeperError):
        vk.Token.parse(value)
    with db.snapshot() as snapshot:
        for call in (lambda: snapshot.get(value, 1), lambda: snapshot.scan(value), lambda: snapshot.read(value)):
            with pytest.raises(vk.ViewkeeperError):
                call()


def test_levels_are_told_by_name(db: Any) -> None:
    with pytest.raises(vk.ViewkeeperError, match=r"no level 'latest'.*viewkeeper\.LATEST"):
        db.get("t", 1, "latest")


def test_times_without_end_are_times(db: Any, make_db: Callable[..., Any]) -> None:
    with db.snapshot(max_age=math.inf) as snapshot:
        assert snapshot.get("t", 1) == {"k": 1, "v": 1}
    assert db.get("t", 1, vk.LATEST, timeout=math.inf) == {"k": 1, "v": 1}
