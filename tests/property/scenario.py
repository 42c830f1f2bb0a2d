"""A scenario is everything that happens to one database: tables, views, batches, and when each view is made.

generate   from a seed
run        on Viewkeeper, under names that are hard to spell: what each view holds after each batch
check      against the oracles: a list of problems
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from tests.contract.conftest import databases
from tests.naming import Called, Naming

from viewkeeper.errors import BadStatement, Unsupported

from . import oracle
from .changes import (
    Batch,
    Delete,
    Put,
    delete_argument,
    key_argument,
    put_argument,
    random_batches,
    states,
    to_arrow,
)
from .compare import canonical, difference, rows_difference
from .grammar import BREADTH, CORE, Grammar
from .query import View
from .schemas import Table, random_schema


@dataclass(frozen=True)
class Scenario:
    seed: int
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    batches: tuple[Batch, ...]
    made_at: tuple[int, ...]
    """For each view the batch before which it is made; the last possible is just before the last batch."""
    pending: tuple[bool, ...]
    """For each view whether it is made when that batch's changes are written but not refreshed."""
    reopened: tuple[int, ...] = ()
    """Batches before which the database is closed and opened again."""


@dataclass(frozen=True)
class Problem:
    view: str
    batch: int
    text: str


@dataclass(frozen=True)
class Held:
    """What a table or view holds after a batch, and by which columns it is kept."""

    rows: pa.Table
    key: tuple[str, ...]


History = list[dict[str, Held]]


def generate(seed: int, views: int = 10, batches: int = 4) -> Scenario:
    """Everything follows from the seed; an even one has the whole breadth, an odd one goes deeper into the core."""
    rng = Random(seed)
    features = CORE if seed % 2 else CORE | BREADTH
    tables = random_schema(rng)
    grammar = Grammar(rng, tables, features)
    return scheduled(rng, seed, tables, [grammar.view(f"view_{i}") for i in range(views)], batches)


def scheduled(rng: Random, seed: int, tables: Sequence[Table], views: Sequence[View], batches: int) -> Scenario:
    """These tables and views with random batches: some views are made before the first one, some later."""
    made = tuple(views)
    made_at = sorted(min(rng.choice((0, 0, 1, 1, 1, 2)), batches - 1) for _ in made)
    pending: list[bool] = []
    for i, view in enumerate(made):  # not before the views that it reads
        waits = any(
            late and made_at[j] == made_at[i] and f"{made[j].name} " in view.sql for j, late in enumerate(pending)
        )
        pending.append(waits or rng.random() < 0.2)
    changes = random_batches(rng, tables, batches)
    reopened = tuple(b for b in range(1, batches) if rng.random() < 0.15)
    return Scenario(seed, tuple(tables), made, changes, tuple(made_at), tuple(pending), reopened)


# Running it.


Refused = dict[str, str]
"""Views that were refused, and why, where that is an outcome that a test allows."""


def run(
    scenario: Scenario, spark: Any, lane: str = "driver", store: str = "lmdb", refused: Refused | None = None
) -> tuple[History, list[Problem]]:
    """What every view and table holds after each batch; and what was refused or raised."""
    with tempfile.TemporaryDirectory() as folder, databases(store, Path(folder)) as make:
        return _run(scenario, lambda: make(spark=spark), lane, refused)


def _run(
    scenario: Scenario, open_database: Callable[[], Any], lane: str, refused: Refused | None
) -> tuple[History, list[Problem]]:
    tables = {t.name: t for t in scenario.tables}
    problems: list[Problem] = []
    lost: set[str] = set()
    history: History = []

    def make(db: Any, number: int, pending: bool) -> None:
        for view, at, late in zip(scenario.views, scenario.made_at, scenario.pending, strict=True):
            if (at, late) != (number, pending):
                continue
            if any(f"{name} " in view.sql for name in lost):
                lost.add(view.name)
                continue
            try:
                db.sql(view.ddl)
            except Exception as error:
                lost.add(view.name)
                if refused is not None and isinstance(error, BadStatement | Unsupported):
                    refused[view.name] = str(error)
                    continue
                problems.append(Problem(view.name, number, f"CREATE failed: {type(error).__name__}: {error}"))

    naming = Naming(scenario.seed)  # the oracle goes on with the plain names

    def opened() -> Called:
        return Called(open_database(), naming)

    db = opened()
    try:
        for table in scenario.tables:
            db.sql(table.ddl)
        for number, batch in enumerate(scenario.batches):
            if number in scenario.reopened:
                db.close()
                db = opened()
            make(db, number, False)
            for call in batch:
                table = tables[call.table]
                if isinstance(call, Put):
                    db.put(call.table, put_argument(table, call))
                elif isinstance(call, Delete):
                    db.delete(call.table, delete_argument(table, call))
                else:
                    db.update(call.table, key_argument(call.key), call.columns)
            make(db, number, True)
            try:
                db.refresh(lane=lane, suspend=False)
            except Exception as error:
                problems.append(Problem("", number, f"refresh failed: {type(error).__name__}: {error}"))
                return history, problems
            names = [t.name for t in scenario.tables]
            names += [v.name for v, at in zip(scenario.views, scenario.made_at, strict=True) if at <= number]
            history.append({n: Held(db.read(n), _key(db, n)) for n in names if n not in lost})
            problems += _gets(db, scenario, history[-1], number)
    finally:
        db.close()
    return history, problems


def _key(db: Any, name: str) -> tuple[str, ...]:
    shape = db.sql(f"DESCRIBE {name}").to_pylist()
    return tuple(c["column"] for c in sorted(shape, key=lambda c: c["key"] or 0) if c["key"])


def _gets(db: Any, scenario: Scenario, found: dict[str, Held], number: int) -> Iterator[Problem]:
    """`scan` by a key agrees with `read`, for a few rows; of lazy views by every part of the key, for more of them."""
    rng = Random(scenario.seed + number)
    lazy = {view.name for view in scenario.views if view.store}
    for name, held in found.items():
        rows, key = held.rows, held.key
        if name.startswith("tab") or rows.num_rows == 0 or (rng.random() < 0.8 and name not in lazy):
            continue
        row = rows.slice(rng.randrange(rows.num_rows), 1).to_pylist()[0]
        for columns in (key[:n] for n in range(1 if name in lazy and key else len(key), len(key) + 1)):
            value = tuple(row[k] for k in columns)
            same = [r for r in rows.to_pylist() if repr([r[k] for k in columns]) == repr(list(value))]
            scanned = list(db.scan(name, prefix=value)) if value else list(db.scan(name))
            if sorted(map(repr, scanned)) != sorted(map(repr, same)):
                yield Problem(name, number, f"scan(prefix={value!r}): expected {same}, got {scanned}")


# Checking it.


def check(
    scenario: Scenario, spark: Any, lane: str = "driver", store: str = "lmdb", refused: Refused | None = None
) -> list[Problem]:
    """Runs the scenario and the oracle side by side (the JVM is another process) and compares.

    With `refused` a view may be refused by name: it is noted there. One that Spark refuses must be.
    """
    after = states(scenario.tables, scenario.batches)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(_answers, scenario, after, spark, refused is not None)
        history, problems = run(scenario, spark, lane, store, refused)
        expected = answers.result()
    problems += [
        Problem(view, 0, f"Spark takes this query: {why}")
        for view, why in (refused or {}).items()
        if why.startswith(f"[{BadStatement.code}]") and expected.get(view)
    ]
    return problems + list(_compare(scenario, after, history, expected))


def _answers(
    scenario: Scenario, after: Sequence[Any], spark: Any, may_refuse: bool
) -> dict[str, list[pa.Table] | None]:
    """What each view holds after each batch; None for one that Spark refuses, too, and nothing for one that it takes
    but cannot run."""
    spark_oracle = oracle.SparkOracle(spark, scenario.tables, after)
    found: dict[str, list[pa.Table] | None] = {}
    unanswered: set[str] = set()
    for i, view in enumerate(scenario.views):
        if any(f"{name} " in view.sql for name in unanswered):
            unanswered.add(view.name)
            continue
        try:
            found[view.name] = answers = spark_oracle.answers(view)
        except AnalysisException:
            if not may_refuse:
                raise
            found[view.name] = None
            unanswered.add(view.name)
            continue
        except Py4JJavaError:
            if not may_refuse:
                raise
            unanswered.add(view.name)
            continue
        if any(f"{view.name} " in later.sql for later in scenario.views[i + 1 :]):
            spark_oracle.define(view, answers)
    return found


def _compare(
    scenario: Scenario, after: Sequence[Any], history: History, expected: dict[str, list[pa.Table] | None]
) -> Iterator[Problem]:
    failed: set[str] = set()
    for number, found in enumerate(history):
        for table in scenario.tables:
            want = to_arrow(table, after[number][table.name].values())
            text = rows_difference(
                [(repr(r),) for r in want.to_pylist()], [(repr(r),) for r in found[table.name].rows.to_pylist()]
            )
            if text:
                yield Problem(table.name, number, text)
        for view in scenario.views:
            if view.name in failed or view.name not in found or view.name not in expected:
                continue
            held, answers = found[view.name], expected[view.name]
            text = difference(view, answers[number], held.rows, held.key) if answers else "Spark refuses this query"
            if text:
                failed.add(view.name)
                yield Problem(view.name, number, text)
    if not history:
        return
    second = oracle.duckdb_answer(scenario.tables, after[len(history) - 1], scenario.views)
    for view in scenario.views:
        if view.name in second and view.name not in failed and view.name in history[-1]:
            got = canonical(view.columns, history[-1][view.name].rows)
            if text := rows_difference(second[view.name], got):
                yield Problem(view.name, len(history) - 1, f"DuckDB differs: {text}")
