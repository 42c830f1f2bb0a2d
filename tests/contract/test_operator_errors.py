"""Whatever an operator raises, at any step, suspends its own views: the others stay right and fresh.

Faults of the process are no view's: they fail the refresh, suspend nothing, and the next refresh goes on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.contract import planned
from tests.contract.planned import TOTALS, item

import viewkeeper as vk
from viewkeeper.errors import (
    Defect,
    EvaluationError,
    MaintainerBusy,
    MissingDependency,
    StoreError,
    Suspended,
    UnknownName,
    Unsupported,
)
from viewkeeper.operators.kinds import Aggregate
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.context import LocalContext
from viewkeeper.runtime.operator_errors import OperatorError

ERRORS: dict[str, Callable[[], BaseException]] = {
    "without text": ValueError,
    "KeyError": lambda: KeyError("In"),
    "assertion": lambda: AssertionError("never"),
    "recursion": lambda: RecursionError("maximum depth"),
    "of Arrow": lambda: pa.ArrowInvalid("Could not convert"),
    "of DuckDB": lambda: duckdb.BinderException("No function matches"),
    "inside DuckDB": lambda: duckdb.InternalException("INTERNAL Error: Attempted to access index 0"),
    "unsupported": lambda: Unsupported("Type ARRAY<BIGINT> is not supported."),
    "unknown name": lambda: UnknownName("There is no column"),
    "not installed": lambda: MissingDependency("A package is missing."),
    "defect": lambda: Defect("What cannot be."),
    "of the data": lambda: EvaluationError("DIVIDE_BY_ZERO: Division by zero."),
    "end of an iterator": StopIteration,
}
PROCESS: dict[str, Callable[[], BaseException]] = {
    "disk full": lambda: OSError(28, "No space left on device"),
    "memory": MemoryError,
    "memory of DuckDB": lambda: duckdb.OutOfMemoryException("Out of Memory Error"),
    "store": lambda: StoreError("The store does not answer."),
    "lease": lambda: MaintainerBusy("Another process maintains it."),
    "Ctrl-C": KeyboardInterrupt,
    "exit": SystemExit,
}


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'db'}", durability="none") as found:
        planned.tables(found)
        found.put("items", [item(n) for n in range(9)])
        yield found


def breaking(monkeypatch: pytest.MonkeyPatch, step: str, error: Callable[[], BaseException], after: int = 0) -> None:
    """From its call `after` on, this step of every aggregate raises the error."""
    calls = iter(range(1_000_000))
    usual = getattr(Aggregate, step)

    def broken(self: Aggregate, *given: Any) -> Any:
        if next(calls) >= after:
            raise error()
        return usual(self, *given)

    monkeypatch.setattr(Aggregate, step, broken)


def suspended(db: Any) -> dict[str, str]:
    return {v.name: v.suspended for v in db.status().views if v.suspended}


def right(db: Any) -> None:
    """The view that does not fail has every write."""
    expected = [r["item_id"] for r in db.read("items").to_pylist() if r["price"] > 3]
    assert [r["item_id"] for r in db.read("dear").to_pylist()] == expected


@pytest.mark.parametrize(
    ("step", "error"),
    [*(("run", error) for error in ERRORS), ("route_to_ports", "without text"), ("route_to_ports", "unsupported")],
)
def test_an_error_in_a_batch_suspends_the_views_of_its_operator(
    db: Any, monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    planned.create(db, "totals", "dear")
    with monkeypatch.context() as patch:
        breaking(patch, step, ERRORS[error])
        db.put("items", item(20))
        report = db.refresh()
        assert list(report.suspended) == ["totals"]
        assert list(suspended(db)) == ["totals"]
        right(db)
        db.put("items", item(21))
        db.refresh()
        right(db)
        with pytest.raises(Suspended, match="totals is suspended since"):
            db.read("totals")
    db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    planned.check(db)


@pytest.mark.parametrize("error", ["without text", "unsupported", "inside DuckDB"])
@pytest.mark.parametrize("step", ["run", "route_to_ports", "seed"])
def test_an_error_in_a_load_is_that_of_the_view_that_is_loaded(
    db: Any, monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    planned.create(db, "dear")
    with monkeypatch.context() as patch:
        breaking(patch, step, ERRORS[error])
        with pytest.raises(EvaluationError, match="totals"):
            planned.create(db, "totals")
        db.put("items", item(20))
        assert not db.refresh().suspended
        right(db)
    planned.create(db, "totals")
    planned.check(db)
    with monkeypatch.context() as patch:  # and all state is made anew with a view that fails
        breaking(patch, step, ERRORS[error])
        maintainer = db._acquire_maintainer()
        maintainer.suspender.run_without_failing(maintainer.state_repair.rebuild)
        assert list(suspended(db)) == ["totals"]
        db.put("items", item(21))
        db.refresh()
        right(db)


@pytest.mark.parametrize("error", ["without text", "unsupported"])
def test_an_error_in_a_merge_suspends_the_views_of_its_operator(
    db: Any, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    planned.create(db, "totals", "dear")
    with monkeypatch.context() as patch:
        breaking(patch, "merge_runs", ERRORS[error])
        for n in range(30, 60):
            db.put("items", item(n))
            db.refresh()
            merger = db._acquire_maintainer().publisher.compactor
            if merger._future is not None:
                merger._future.exception()  # it has ended: the next batch hears of it
            right(db)
        assert list(suspended(db)) == ["totals"]
        assert not db.status().afterwards
    db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    planned.check(db)


def test_an_error_in_the_whole_output_of_a_shared_operator_stops_the_view_that_needs_it(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned.create(db, "totals", "dear")
    with monkeypatch.context() as patch:
        breaking(patch, "full", ERRORS["KeyError"])
        with pytest.raises(EvaluationError, match="KeyError"):
            db.sql(f"CREATE MATERIALIZED VIEW again AS {TOTALS}")
    db.put("items", item(20))
    assert not db.refresh().suspended
    planned.check(db)
    right(db)


def test_an_error_while_rows_wait_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting:
        id = "aggregate-1"

        def compacted(self, *given: Any) -> Any:
            raise KeyError("In")

    site = LocalContext.__new__(LocalContext)
    site.statements = None  # type: ignore[assignment]
    with pytest.raises(OperatorError) as failed:
        site.compact(Waiting(), 0, [])  # type: ignore[arg-type]
    assert failed.value.operator == "aggregate-1"


@pytest.mark.parametrize(
    ("step", "fault"),
    [*(("run", fault) for fault in PROCESS), ("route_to_ports", "disk full"), ("route_to_ports", "Ctrl-C")],
)
def test_a_fault_of_the_process_suspends_no_view(
    db: Any, monkeypatch: pytest.MonkeyPatch, step: str, fault: str
) -> None:
    planned.create(db, "totals", "dear")
    db.put("items", item(20))
    with monkeypatch.context() as patch:
        breaking(patch, step, PROCESS[fault])
        with pytest.raises(BaseException) as raised:
            db.refresh()
        assert not isinstance(raised.value, EvaluationError)
    assert not suspended(db)
    assert not db.refresh().suspended
    planned.check(db)
    right(db)


def test_what_does_not_come_again_suspends_the_view_too(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.create(db, "totals", "dear")
    calls = iter(range(100))
    usual = Aggregate.run

    def once(self: Aggregate, *given: Any) -> Any:
        if next(calls) == 0:
            raise RuntimeError("only once")
        return usual(self, *given)

    monkeypatch.setattr(Aggregate, "run", once)
    db.put("items", item(20))
    assert "RuntimeError: only once" in db.refresh().suspended["totals"]
    right(db)


def test_the_row_is_named_and_a_defect_is_not_blamed_on_it(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.create(db, "totals", "dear")
    breaking(monkeypatch, "run", ERRORS["KeyError"])
    db.put("items", item(20))
    said = db.refresh().suspended["totals"]
    assert (
        said == "totals: KeyError: 'In'. It was met with the row with items.item_id = 20, which need not be its cause."
    )


def test_a_duckdb_that_broke_is_replaced() -> None:
    with PreparedStatements(threads=1) as duck:
        duck.run("SELECT 1 AS one")
        duck.set_memory_limit(64 << 20)
        usual = duck._fetch_result

        def broken(statement: str) -> Any:
            duck._connection.close()
            raise duckdb.InternalException("INTERNAL Error: Attempted to access index 0")

        duck._fetch_result = broken  # type: ignore[method-assign]
        with pytest.raises(duckdb.InternalException):
            duck.run("SELECT 1 AS one")
        duck._fetch_result = usual  # type: ignore[method-assign]
        assert duck.run("SELECT 1 AS one")["one"].to_pylist() == [1]
        assert duck.run("SELECT current_setting('memory_limit') AS l")["l"].to_pylist() == ["64.0 MiB"]


# -- by construction ---------------------------------------------------------------------------------------------------

SOURCE = Path(vk.__file__).parent
METHODS = {"run", "route_to_ports", "build_table_delta", "seed", "full", "merge_runs", "compact"}
"""What an operator computes with."""


SEARCHED = {"attempt", "_run_segment"}
"""Of `context.py`: what the search for a row tries, and the piece of work that it and the guarded call share."""


def unguarded(path: Path) -> Iterator[str]:
    """Calls of an operator's own code that are not inside `with attribute_errors(…)`."""

    def visit(node: ast.AST, inside: bool) -> Iterator[str]:
        if isinstance(node, ast.With):
            inside = inside or any("attribute_errors" in ast.unparse(i.context_expr) for i in node.items)
        if isinstance(node, ast.FunctionDef) and path.name == "context.py":
            inside = inside or node.name in SEARCHED
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not inside:
            on = ast.unparse(node.func.value).split(".")[-1]
            if on == "operator" and node.func.attr in METHODS:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)[:60]}"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(path.read_text("utf-8")), False)


def test_every_call_of_an_operators_code_is_attributed() -> None:
    folders = [SOURCE / name for name in ("runtime", "commit", "maintain", "read", "capture")]
    assert [call for folder in folders for path in folder.rglob("*.py") for call in unguarded(path)] == []
