"""Thousands of views of one template: a family against the same views one by one.

    python benchmarks/views.py [--scale 1] [--small] [--only q6,q1,q3,q10] [--counts 10,…] [--named] [--json FILE]

Repeats section 5.3 of the seeds' dissertation: TPC-H's Q1, Q3, Q6 and Q10 (without their limits), each with other
constants: *drawn* as the benchmark's own generator draws them, of which few are distinct, and *distinct*. A family is
made over loaded tables; its members are put in one call; then batches of 25,000 scattered changes of lineitem come.

    define    CREATE of the family: Spark's reading, and its sums from the tables
    members   all members put, made and published
    load      both: what the dissertation calls the time of n views         bars for 10,000: 15, 20, 60 and 60 s
    batch     25,000 changed lines through all members, durable             bars for 10,000: 1 s (Q6, Q1)
    apart     a member as a view by itself, times the number of views: its load, and its part of a batch
    GB        the most anonymous memory (no mapped files) beyond the benchmark's own data       bar for 10,000: 6

`--different 1000`: so many different views instead, drawn at random over the same tables (`bars/different.py`), in
batches together, with nothing shared, and one after the other.
`--keep`: into `results/views.json` and `results/views.md`, in place of the last run of the same command.
`--named`: the same views as statements with constants, by `create_views`, all at once (`define`; bar for 10,000: 60 s).

Where groups are many (Q3, Q10), 10,000 distinct members have a hundred million rows and more; of those only small
families are made here. Some members are compared with views of their own constants after every step; none may differ.
The dissertation's times for 10,000 views, on 200 nodes: 107 (Q6), 78 (Q1), 362 (Q3) and 411 s (Q10).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import viewkeeper
from bars import different as different_views
from bars import many
from bars.asked import some_of
from bars.many import Line, show
from bars.setting import Peak, machine, settled
from viewkeeper.workloads.tpch import SCHEMAS
from viewkeeper.workloads.tpch.changes import generate

CHANGES = 25_000
BATCHES = 3
CONSTANTS = ("drawn", "distinct")
TABLES = ("lineitem", "orders", "customer", "nation")
REVENUE = "sum(l_extendedprice * (1 - l_discount))"


def day(number: int) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(int(number))


def q6(rng: np.random.Generator, drawn: bool) -> tuple[Any, ...]:
    if drawn:
        start = datetime.date(int(rng.integers(1993, 1998)), 1, 1)
        return (
            start,
            start.replace(year=start.year + 1),
            Decimal(int(rng.integers(2, 10))) / 100,
            int(rng.integers(24, 26)),
        )
    start = int(rng.integers(8036, 10378))
    return (
        day(start),
        day(start + rng.integers(30, 730)),
        Decimal(int(rng.integers(2, 10))) / 100,
        int(rng.integers(5, 51)),
    )


def q1(rng: np.random.Generator, drawn: bool) -> tuple[Any, ...]:
    if drawn:
        return day(0), day(10562 - rng.integers(60, 121))
    start = int(rng.integers(8036, 10378))
    return day(start), day(start + rng.integers(10, 1500))


def q3(rng: np.random.Generator, drawn: bool) -> tuple[Any, ...]:
    names = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
    return str(rng.choice(names)), day(rng.integers(9190, 9221) if drawn else rng.integers(8039, 10539))


def q10(rng: np.random.Generator, drawn: bool) -> tuple[Any, ...]:
    if drawn:
        month = 277 + int(rng.integers(0, 24))
        return tuple(datetime.date(1970 + m // 12, m % 12 + 1, 1) for m in (month, month + 3))
    start = int(rng.integers(8035, 9190))
    return day(start), day(start + rng.integers(30, 150))


@dataclass(frozen=True)
class Template:
    """`load` and `batch`: seconds at 10,000 views, with drawn constants where only those have a bar."""

    parameters: dict[str, str]
    query: str
    draw: Callable[[np.random.Generator, bool], tuple[Any, ...]]
    load: float
    batch: float | None = None
    only_drawn: bool = False


TEMPLATES = {
    "q6": Template(
        {"low": "DATE", "high": "DATE", "disc": "DECIMAL(4,2)", "qty": "INT"},
        """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= :low
           AND l_shipdate < :high AND l_discount BETWEEN :disc - 0.01 AND :disc + 0.01 AND l_quantity < :qty""",
        q6,
        15.0,
        1.0,
    ),
    "q1": Template(
        {"low": "DATE", "high": "DATE"},
        f"""SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
           {REVENUE} AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
           avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
           count(*) AS count_order FROM lineitem WHERE l_shipdate >= :low AND l_shipdate <= :high
           GROUP BY l_returnflag, l_linestatus""",
        q1,
        20.0,
        1.0,
    ),
    "q3": Template(
        {"segment": "STRING", "day": "DATE"},
        f"""SELECT l_orderkey, o_orderdate, o_shippriority, {REVENUE} AS revenue FROM customer, orders, lineitem
           WHERE c_mktsegment = :segment AND c_custkey = o_custkey AND l_orderkey = o_orderkey
           AND o_orderdate < :day AND l_shipdate > :day GROUP BY l_orderkey, o_orderdate, o_shippriority""",
        q3,
        60.0,
        only_drawn=True,
    ),
    "q10": Template(
        {"low": "DATE", "high": "DATE"},
        f"""SELECT c_custkey, c_name, {REVENUE} AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
           FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
           AND o_orderdate >= :low AND o_orderdate < :high AND l_returnflag = 'R' AND c_nationkey = n_nationkey
           GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment""",
        q10,
        60.0,
        only_drawn=True,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--small", action="store_true", help="scale 0.01, up to 1,000 views: to see that it runs")
    parser.add_argument("--only", type=some_of(TEMPLATES), default=list(TEMPLATES))
    parser.add_argument("--counts", default="10,100,1000,10000")
    parser.add_argument("--constants", type=some_of(CONSTANTS), default=CONSTANTS)
    parser.add_argument("--named", action="store_true", help="as views made by name, instead of one with PARAMETERS")
    parser.add_argument("--different", default="", help="so many different views instead, for example 50,1000")
    parser.add_argument("--apart", type=int, default=2, help="members that are also made as views of their own")
    parser.add_argument("--data", type=Path, default=Path("build/data"), help="where TPC-H's files are, or are made")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--keep", action="store_true", help="keep the results with those of other runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed or a member differs")
    arguments = parser.parse_args()
    busy = round(os.getloadavg()[0], 1)
    scale = 0.01 if arguments.small else arguments.scale
    counts = [int(n) for n in arguments.counts.split(",") if not arguments.small or int(n) <= 1000]
    lines: list[Line] = []
    different: list[different_views.Found] = []

    def keep() -> None:
        found = {"benchmark": "views", "scale": scale, "machine": machine(), "load": busy}
        found |= {"lines": [asdict(line) for line in lines], "different": [asdict(one) for one in different]}
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")
        if arguments.keep:
            many.keep(many.command(sys.argv[1:]), found)

    with tempfile.TemporaryDirectory(prefix="vk-bench-") as directory:
        files = generate(scale, arguments.data)
        with viewkeeper.open(f"lmdb:{directory}/db") as db:
            load_tables(db, files)
            db.sql("CREATE MATERIALIZED VIEW first AS SELECT count(*) AS n FROM nation")  # Spark has started after this
            db.sql("DROP MATERIALIZED VIEW first")
            rng = np.random.default_rng(1)
            changes = scattered(files, db._store.catalog().table("lineitem").external_schema, rng)
            kinds = [int(n) for n in arguments.different.split(",") if n]
            for one in different_views.measure(db, kinds, changes, BATCHES) if kinds else ():
                different.append(one)
                different_views.show(one)
                keep()
            for name in arguments.only if not kinds else ():
                for constants in arguments.constants:
                    for count in counts if constants == "drawn" or not TEMPLATES[name].only_drawn else counts[:2]:
                        how = measure_named if arguments.named else measure
                        with Peak() as peak:
                            line = how(db, name, constants == "drawn", count, changes, arguments.apart, rng)
                        over = ("memory",) if count == 10_000 and peak.bytes > 6e9 else ()
                        line = replace(line, memory=peak.bytes / 1e9, missed=(*line.missed, *over))
                        lines.append(line)
                        show(line, first=len(lines) == 1)
                        keep()
    wrong = any(one.differ for one in (*lines, *different)) or any(line.missed for line in lines)
    return int(arguments.check and wrong)


def load_tables(db: viewkeeper.Database, files: Path) -> None:
    for table in TABLES:
        db.sql(SCHEMAS[table])
        schema = db._store.catalog().table(table).external_schema
        for batch in pq.ParquetFile(files / f"{table}.parquet").iter_batches(1 << 19):
            db.put(table, pa.Table.from_batches([batch]).select(schema.names).cast(schema))


def scattered(files: Path, schema: pa.Schema, rng: np.random.Generator) -> Iterator[pa.Table]:
    """Endlessly, 25,000 random lines with other quantities, discounts and dates."""
    lines = pq.read_table(files / "lineitem.parquet").select(schema.names).cast(schema)
    while True:
        chosen = lines.take(pa.array(rng.choice(lines.num_rows, min(CHANGES, lines.num_rows), replace=False)))
        changed = {
            "l_quantity": rng.integers(1, 51, chosen.num_rows).astype(np.float64),
            "l_discount": rng.integers(0, 11, chosen.num_rows) / 100,
            "l_shipdate": rng.integers(8036, 10561, chosen.num_rows).astype("M8[D]"),
        }
        for column, values in changed.items():
            place, kind = chosen.column_names.index(column), chosen.schema.field(column).type
            made = pa.array(values)
            made = made.cast(pa.decimal128(17, 2)).cast(kind) if pa.types.is_decimal(kind) else made.cast(kind)
            chosen = chosen.set_column(place, column, made)
        yield chosen


def measure(
    db: viewkeeper.Database,
    name: str,
    drawn: bool,
    count: int,
    changes: Iterator[pa.Table],
    apart: int,
    rng: np.random.Generator,
) -> Line:
    template = TEMPLATES[name]
    members = list(dict.fromkeys(template.draw(rng, drawn) for _ in range(count)))
    listed = ", ".join(f"{parameter} {kind}" for parameter, kind in template.parameters.items())
    define, _ = timed(lambda: db.sql(f"CREATE MATERIALIZED VIEW {name} PARAMETERS ({listed}) AS {template.query}"))
    rows = [dict(zip(template.parameters, member, strict=True)) for member in members]

    def put() -> None:
        db.put(f"{name}.parameters", rows)
        db.refresh()

    made, _ = timed(put)
    beside = [members[i] for i in rng.choice(len(members), min(apart, len(members)), replace=False)]
    loads = [timed(lambda i=i, m=m: db.sql(f"CREATE MATERIALIZED VIEW apart{i} AS {bound(template, m)}"))[0]
             for i, m in enumerate(beside)]  # fmt: skip
    differ = sum(differs(db, name, i, member) for i, member in enumerate(beside))
    for i in range(len(beside)):
        db.sql(f"ALTER MATERIALIZED VIEW apart{i} SUSPEND")
    puts, batches, cpus = [], [], []
    for _ in range(BATCHES):
        lines = next(changes)
        puts.append(timed(lambda lines=lines: db.put("lineitem", lines))[0])
        settled(db)
        wall, cpu = timed(db.refresh)
        batches.append(wall)
        cpus.append(cpu)
    alone = one_by_one(db, name, changes, len(beside), statistics.median(batches))
    differ += sum(differs(db, name, i, member) for i, member in enumerate(beside))
    for i in range(len(beside)):
        db.sql(f"DROP MATERIALIZED VIEW apart{i}")
    view_rows = next(v.rows for v in db.status().views if v.name == name)
    db.sql(f"DROP MATERIALIZED VIEW {name}")
    batch = statistics.median(batches)
    missed = []
    if count == 10_000 and (drawn or not template.only_drawn):
        missed += ["load"] if define + made > template.load else []
        missed += ["batch"] if template.batch is not None and batch > template.batch else []
    return Line(
        name,
        CONSTANTS[not drawn],
        count,
        len(members),
        view_rows,
        define,
        made,
        define + made,
        statistics.median(puts),
        batch,
        statistics.median(cpus),
        count * statistics.median(loads),
        count * alone,
        differ,
        0.0,
        missed=tuple(missed),
    )


def measure_named(
    db: viewkeeper.Database,
    name: str,
    drawn: bool,
    count: int,
    changes: Iterator[pa.Table],
    apart: int,
    rng: np.random.Generator,
) -> Line:
    template = TEMPLATES[name]
    members = [template.draw(rng, drawn) for _ in range(count)]
    define, _ = timed(lambda: db.create_views({f"{name}_{i}": written(template, m) for i, m in enumerate(members)}))
    beside = [int(i) for i in rng.choice(count, min(apart, count), replace=False)]
    for i in beside:
        db.sql(f"CREATE MATERIALIZED VIEW apart_{i} WITH (share = false) AS {written(template, members[i])}")
    differ = sum(not db.read(f"{name}_{i}").equals(db.read(f"apart_{i}")) for i in beside)
    for i in beside:
        db.sql(f"ALTER MATERIALIZED VIEW apart_{i} SUSPEND")
    puts, batches, cpus = [], [], []
    for _ in range(BATCHES):
        lines = next(changes)
        puts.append(timed(lambda lines=lines: db.put("lineitem", lines))[0])
        settled(db)
        wall, cpu = timed(db.refresh)
        batches.append(wall)
        cpus.append(cpu)
    for i in beside:
        db.sql(f"ALTER MATERIALIZED VIEW apart_{i} RESUME")
    differ += sum(not db.read(f"{name}_{i}").equals(db.read(f"apart_{i}")) for i in beside)
    rows = sum(db._store.count(v.table) for v in db._store.catalog().views if v.is_hidden_family)
    db.drop_views([*(f"apart_{i}" for i in beside), *(f"{name}_{i}" for i in range(count))])
    missed = ["define"] if count == 10_000 and define > 60 else []
    distinct, batch, cpu = len(set(members)), statistics.median(batches), statistics.median(cpus)
    put = statistics.median(puts)
    constants = CONSTANTS[not drawn]
    return Line(
        name, constants, count, distinct, rows, define, 0.0, define, put, batch, cpu, 0.0, 0.0, differ, 0.0,
        named=True, missed=tuple(missed),
    )  # fmt: skip


def written(template: Template, member: tuple[Any, ...]) -> str:
    """The query with literals, as somebody would write it."""
    query = template.query
    for (parameter, kind), value in zip(template.parameters.items(), member, strict=True):
        literal = {"DATE": f"DATE '{value}'", "STRING": f"'{value}'"}.get(kind, str(value))
        query = query.replace(f":{parameter}", literal)
    return query


def one_by_one(db: viewkeeper.Database, name: str, changes: Iterator[pa.Table], count: int, family: float) -> float:
    """Seconds that a batch takes longer for each view of its own."""
    for i in range(count):
        db.sql(f"ALTER MATERIALIZED VIEW apart{i} RESUME")
    walls = []
    for _ in range(BATCHES):
        db.put("lineitem", next(changes))
        settled(db)
        walls.append(timed(db.refresh)[0])
    return max(0.0, statistics.median(walls) - family) / max(1, count)


def bound(template: Template, member: tuple[Any, ...]) -> str:
    """The query with constants, each of the parameter's type."""
    query = template.query
    for (parameter, kind), value in zip(template.parameters.items(), member, strict=True):
        query = query.replace(f":{parameter}", f"CAST('{value}' AS {kind})")
    return query


def differs(db: viewkeeper.Database, name: str, number: int, member: tuple[Any, ...]) -> int:
    mine = [tuple(row.values())[len(member) :] for row in db.scan(name, prefix=member)]
    theirs = [tuple(row.values()) for row in db.read(f"apart{number}").to_pylist()]
    return int(sorted(map(repr, mine)) != sorted(map(repr, theirs)))


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    raise SystemExit(main())
