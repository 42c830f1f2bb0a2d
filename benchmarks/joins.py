"""Joins of every kind, against the same joins as INNER JOINs: seconds of CREATE, lines of EXPLAIN, cost of batches.

    python benchmarks/joins.py [--joins 4,8,12,16] [--only planning,batches] [--kinds star,chain,…] [--timeout 20]
                               [--small] [--json FILE] [--keep] [--check]

A fact table refers to n dimensions (star), or each table refers to the next one (chain):

    star, chain      n LEFT JOINs                            full key    n FULL JOINs, all USING (id)
    not exists       n NOT EXISTS in one WHERE               full chain  n FULL JOINs, each on the key of the one before
    exists or        n times (condition OR EXISTS …)         inner       n INNER JOINs, to compare with

    planning   CREATE over tables of 100 rows, the JVM started and the shape planned once before: the median of three,
               of which Spark's part (`catalyst`), and EXPLAIN's lines. A CREATE that passes `--timeout` is given up,
               and so are the larger ones of its kind.
    batches    seconds of a refresh after 1,000 changes of the fact, of a dimension's attributes, and of which rows a
               dimension has (half inserted, half deleted): the median of some, and its ratio to that of the same view
               with INNER JOINs, which is measured in turn with it.

Every view is compared with DuckDB's recompute after its last batch; `differ` counts rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars.asked import some_of
from bars.catalyst import catalyst_seconds

RESULTS = Path(__file__).parent / "results"
KINDS = ("star", "chain", "not exists", "exists or", "full key", "full chain", "inner")
PARTS = ("planning", "batches")
CHANGES = ("fact", "attributes", "rows")
JOINS = (4, 8, 12, 16)
MEASURED = 3
"""CREATEs of which the median is taken."""
BATCHES = 7
CREATE_SECONDS = {"full key": 2.0, "full chain": 2.0}
"""Bars for CREATE of 12 joins; other kinds: 1 second."""
GROWTH = 5.0
"""Bar for planning at 16 joins, in terms of that at 8."""
EXPLAIN_LINES = 150
"""Bar for EXPLAIN of 12 LEFT JOINs."""
RATIOS = {"fact": 1.5, "attributes": 1.5, "rows": 2.5}
"""Bars for batches of LEFT JOINs, in terms of INNER JOINs."""

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joins", default=",".join(map(str, JOINS)), help="how many joins, with commas")
    parser.add_argument("--only", type=some_of(PARTS), default=list(PARTS))
    parser.add_argument("--kinds", type=some_of(KINDS), default=list(KINDS))
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds after which a CREATE is given up")
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, 2 and 4 joins")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--keep", action="store_true", help="keep the results in results/joins.json and .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed or a row differs")
    asked = parser.parse_args()
    joins = [2, 4] if asked.small else [int(n) for n in asked.joins.split(",")]
    load, lines = round(os.getloadavg()[0], 1), []
    for line in measure(asked.only, asked.kinds, joins, asked.timeout, asked.small):
        lines.append(line)
        print("  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in line.items()), flush=True)
        found = {"benchmark": "joins", "load": load, "lines": lines}
        for path in (*([asked.json] if asked.json else []), *([RESULTS / "joins.json"] * asked.keep)):
            path.write_text(json.dumps(found, indent=1) + "\n")
    page = "\n".join(report(lines, load))
    print(page)
    if asked.keep:
        (RESULTS / "joins.md").write_text(page)
    return int(asked.check and bool(missed_bars(lines)))


def measure(only: list[str], kinds: list[str], joins: list[int], limit: float, small: bool) -> Iterator[Line]:
    failed: set[str] = set()
    planned("inner", 2, 600.0)  # starts the JVM
    for kind in kinds if "planning" in only else ():
        for n in joins:
            line = planned(kind, n, limit)
            yield line
            if "outcome" in line:
                failed.add(kind)
                break
    facts = 10_000 if small else 100_000
    for kind in kinds if "batches" in only else ():
        if kind == "inner" or kind in failed:
            continue
        for n in joins:
            line = maintained(kind, n, facts, limit)
            yield line
            if "outcome" in line:
                break


# -- tables and views --------------------------------------------------------------------------------------------------


def query(kind: str, n: int, how: str = "") -> str:
    """A view of n joins of this kind; `how` INNER puts inner joins in place of them, each condition as it is."""
    dimensions = range(1, n + 1)
    if kind in ("not exists", "exists or") and not how:
        exists = [f"EXISTS (SELECT 1 FROM d{i} WHERE d{i}.id = f.k{i} AND d{i}.a < 3)" for i in dimensions]
        each = [f"NOT {e}" if kind == "not exists" else f"(f.v = {i} OR NOT {e})" for i, e in enumerate(exists)]
        if kind == "exists or":
            each = [c.replace("NOT EXISTS", "EXISTS").replace("a < 3", "a >= 3") for c in each]
        return f"SELECT f.id, f.v FROM f WHERE {' AND '.join(each)}"
    join = f"{how or {'full key': 'FULL', 'full chain': 'FULL', 'inner': 'INNER'}.get(kind, 'LEFT')} JOIN"
    names = ", ".join(f"d{i}.a AS a{i}" for i in dimensions)
    if kind == "full key":
        return f"SELECT id, f.v, {names} FROM f " + " ".join(f"{join} d{i} USING (id)" for i in dimensions)
    chained = kind.endswith("chain")
    on = [f"d{i - 1}.next" if chained and i > 1 else f"f.k{i}" for i in dimensions]
    joins = " ".join(f"{join} d{i} ON {on[i - 1]} = d{i}.id" for i in dimensions)
    return f"SELECT f.id, f.v, {names} FROM f {joins}"


class Tables:
    """The tables of n joins, and their changes: `facts` rows in the fact, a tenth of it in each dimension.

    One row in two hundred refers to nothing, so that an INNER JOIN gives nearly the rows that a LEFT JOIN does.
    """

    def __init__(self, n: int, facts: int) -> None:
        self.n, self.facts, self.size = n, facts, facts // 10
        self.rng = np.random.default_rng(7)
        self.given = 0  # ids that have been given to new rows
        self.gone = np.arange(0)  # rows of the dimension that were deleted and come back next

    def define(self, db: Any) -> None:
        keys = ", ".join(f"k{i} BIGINT" for i in range(1, self.n + 1))
        db.sql(f"CREATE TABLE f (id BIGINT PRIMARY KEY, {keys}, v INT)")
        db.put("f", self.fact(np.arange(self.facts)))
        for i in range(1, self.n + 1):
            db.sql(f"CREATE TABLE d{i} (id BIGINT PRIMARY KEY, next BIGINT, a INT)")
            db.put(f"d{i}", self.dimension(np.arange(self.size)))

    def change(self, what: str, count: int) -> Callable[[Any], None]:
        """Changes of the fact, of a dimension's attributes, or of its rows, to be made in every database alike."""
        middle, half = f"d{max(1, self.n // 2)}", count // 2
        self.given += count
        if what == "fact":
            new = np.concatenate([self.facts + self.given + np.arange(half), self.rng.integers(0, self.facts, half)])
            rows = self.fact(np.unique(new))
            return lambda db: db.put("f", rows)
        if what == "attributes":
            ids = self.rng.choice(self.size // 2, min(count, self.size // 2), replace=False)
            rows = pa.table({"id": ids, "a": self.rng.integers(0, 100, len(ids)).astype(np.int32)})
            return lambda db: _update(db, middle, rows)
        # Rows of the upper half go, and come back in the next batch: facts lose their match and find it again.
        upper = np.setdiff1d(np.arange(self.size // 2, self.size), self.gone)
        back, self.gone = self.dimension(self.gone), self.rng.choice(upper, half, replace=False)
        leaving = self.gone.tolist()

        def rows_of(db: Any) -> None:
            db.delete(middle, leaving)
            db.put(middle, back)

        return rows_of

    def fact(self, ids: Any) -> pa.Table:
        columns = {"id": ids} | {f"k{i}": self._reference(len(ids)) for i in range(1, self.n + 1)}
        return pa.table(columns | {"v": self.rng.integers(0, 100, len(ids)).astype(np.int32)})

    def dimension(self, ids: Any) -> pa.Table:
        a = self.rng.integers(0, 100, len(ids)).astype(np.int32)
        return pa.table({"id": ids, "next": self._reference(len(ids)), "a": a})

    def _reference(self, count: int) -> Any:
        found = self.rng.integers(0, self.size, count)
        return np.where(self.rng.random(count) < 0.005, -1 - found, found)


def _update(db: Any, table: str, attributes: pa.Table) -> None:
    """Other attributes for these rows, everything else as it is."""
    there = db.read(table)
    with duckdb.connect() as duck:
        duck.register("there", there)
        duck.register("attributes", attributes)
        rows = duck.sql("SELECT t.id, t.next, n.a FROM there t JOIN attributes n ON t.id = n.id").arrow()
    db.put(table, rows if isinstance(rows, pa.Table) else rows.read_all())


# -- measuring ---------------------------------------------------------------------------------------------------------


def planned(kind: str, n: int, limit: float) -> Line:
    line: Line = {"part": "planning", "kind": kind, "joins": n}
    with database(Tables(n, 100)) as (db, tables):
        try:
            times, reads = [], []
            for _ in range(1 + MEASURED):
                if times:
                    db.sql("DROP MATERIALIZED VIEW v")
                seconds, catalyst = create(db, query(kind, n), limit)
                times.append(seconds)
                reads.append(catalyst)
                if seconds > limit / 4:
                    break
            measured = slice(1 if len(times) > 1 else 0, None)
            line |= {"create": statistics.median(times[measured]), "catalyst": statistics.median(reads[measured])}
            line["lines"] = len(str(db.explain("v")).splitlines())
            for what in CHANGES:
                tables.change(what, 10)(db)
                db.refresh("driver", suspend=False)
            line["differ"] = differing_rows(db, tables, query(kind, n))
        except Exception as error:
            line["outcome"] = outcome(error)
    return line


def maintained(kind: str, n: int, facts: int, limit: float) -> Line:
    """Two databases with the same tables: one has the view, the other the same with INNER JOINs."""
    line: Line = {"part": "batches", "kind": kind, "joins": n, "facts": facts}
    texts = [query(kind, n), query(kind, n, "INNER")]
    with ExitStack() as opened:
        dbs = [opened.enter_context(database(Tables(n, facts))) for _ in texts]
        try:
            for (db, _), text in zip(dbs, texts, strict=True):
                create(db, text, limit + facts / 5_000)
            for what in CHANGES:
                times: list[list[float]] = [[], []]
                for number in range(1 + BATCHES):
                    change = dbs[0][1].change(what, facts // 100)
                    order = (0, 1) if number % 2 else (1, 0)
                    for side in order:
                        db = dbs[side][0]
                        change(db)
                        started = time.perf_counter()
                        db.refresh("driver", suspend=False)
                        times[side].append(time.perf_counter() - started)
                ours, inner = (statistics.median(t[1:]) for t in times)
                line |= {what: ours, f"{what} inner": inner, f"{what} ratio": ours / inner}
            line["differ"] = sum(differing_rows(db, t, text) for (db, t), text in zip(dbs, texts, strict=True))
        except Exception as error:
            line["outcome"] = outcome(error)
    return line


@contextmanager
def database(tables: Tables) -> Iterator[tuple[Any, Tables]]:
    with (
        tempfile.TemporaryDirectory(prefix="vk-joins-") as place,
        vk.open(f"lmdb:{place}/db", durability="none") as db,
    ):
        tables.define(db)
        yield db, tables


def create(db: Any, text: str, limit: float) -> tuple[float, float]:
    """The seconds that CREATE takes, and Catalyst's part of them; TimeoutError after `limit` seconds."""
    with catalyst_seconds() as spent, time_limit(limit):
        started = time.perf_counter()
        db.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
        return time.perf_counter() - started, spent[0]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(error: Exception) -> str:
    found: BaseException | None = error
    while found is not None:  # the time-out may have been wrapped on its way
        if isinstance(found, TimeoutError):
            return str(found)
        found = found.__cause__ or found.__context__
    return f"{getattr(error, 'code', type(error).__name__)}: {str(error).splitlines()[0][:80]}"


def differing_rows(db: Any, tables: Tables, text: str) -> int:
    """Rows of the view that DuckDB's recompute does not have, and the other way round."""
    with duckdb.connect() as duck:
        for name in ("f", *(f"d{i}" for i in range(1, tables.n + 1))):
            duck.register(name, db.read(name))
        expected = Counter(duck.sql(text).fetchall())
    columns = db.read("v").to_pydict()
    got = Counter(zip(*columns.values(), strict=True))
    return sum(((expected - got) + (got - expected)).values())


# -- the tables and the bars -------------------------------------------------------------------------------------------


def report(lines: list[Line], load: float) -> Iterator[str]:
    yield "# Joins of every kind, against the same INNER JOINs\n"
    yield f"`python benchmarks/joins.py`, {os.cpu_count()} cores, load of the machine before {load}.\n"
    planning = [line for line in lines if line["part"] == "planning"]
    if planning:
        yield "| kind | joins | CREATE | of which Catalyst | beyond it | EXPLAIN | rows that differ |"
        yield "| --- |" + "---:|" * 6
    for line in planning:
        if "outcome" in line:
            yield f"| {line['kind']} | {line['joins']} | {line['outcome']} | | | | |"
            continue
        cells = (_ms(line["create"]), _ms(line["catalyst"]), _ms(line["create"] - line["catalyst"]))
        rest = f"{line['lines']:,} lines | {line['differ']}"
        yield f"| {line['kind']} | {line['joins']} | {' | '.join(cells)} | {rest} |"
    batches = [line for line in lines if line["part"] == "batches"]
    if batches:
        yield "\n| kind | joins | changes of the fact | attributes | a dimension's rows | rows that differ |"
        yield "| --- |" + "---:|" * 5
    for line in batches:
        if "outcome" in line:
            yield f"| {line['kind']} | {line['joins']} | {line['outcome']} | | | |"
            continue
        cells = tuple(f"{_ms(line[what])}, {line[f'{what} ratio']:.2f}x" for what in CHANGES)
        yield f"| {line['kind']} | {line['joins']} | {' | '.join(cells)} | {line['differ']} |"
    missed = missed_bars(lines)
    yield "\nBars missed: " + ("none.\n" if not missed else "\n\n" + "\n".join(f"- {text}" for text in missed) + "\n")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def missed_bars(lines: list[Line]) -> list[str]:
    """A sentence for each bar that does not hold; one for each view that was not made, or differs."""
    missed = [f"{_name(line)}: {line['outcome']}" for line in lines if "outcome" in line]
    missed += [f"{_name(line)}: {line['differ']} rows differ" for line in lines if line.get("differ")]
    planning = {(line["kind"], line["joins"]): line for line in lines if "create" in line}
    for (kind, n), line in planning.items():
        bar = CREATE_SECONDS.get(kind, 1.0)
        if n == 12 and line["create"] > bar:
            missed.append(f"{_name(line)}: CREATE takes {line['create']:.2f} s; bar {bar} s")
        if n == 12 and kind in ("star", "chain") and line["lines"] > EXPLAIN_LINES:
            missed.append(f"{_name(line)}: EXPLAIN has {line['lines']} lines; bar {EXPLAIN_LINES}")
        if n == 16 and (half := planning.get((kind, 8))):
            growth = (line["create"] - line["catalyst"]) / (half["create"] - half["catalyst"])
            if growth > GROWTH:
                missed.append(f"{_name(line)}: planning takes {growth:.1f} times that of 8; bar {GROWTH}")
    for line in lines:
        if line["part"] != "batches" or line["kind"] not in ("star", "chain"):
            continue
        for what, bar in RATIOS.items():
            if line.get(f"{what} ratio", 0.0) > bar:
                missed.append(f"{_name(line)}, {what}: {line[f'{what} ratio']:.2f}x; bar {bar}x")
    return missed


def _name(line: Line) -> str:
    return f"{line['part']}, {line['joins']} joins, {line['kind']}"


if __name__ == "__main__":
    raise SystemExit(main())
