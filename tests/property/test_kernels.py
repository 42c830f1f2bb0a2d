"""Every fast kernel equals its slow twin: random batches with NULLs, duplicates, updates, emptied groups, extreme
numbers, split over tasks as they come, and with random merges between batches."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viewkeeper.errors import EvaluationError
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.aggregation import extremes
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure
from viewkeeper.operators.kinds import Recompute, aggregate, recompute
from viewkeeper.operators.kinds import lookup as kinds_lookup
from viewkeeper.operators.kinds.lookup import lookup_rows
from viewkeeper.operators.segment import ORDERED_TYPE_FAMILIES, Segment
from viewkeeper.plan.logical.nodes import Expr, Named, column
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.compaction import run_by_hash_ranges
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, arrange, merge

from . import reference
from .reference import Row, Rows

NAN = float("nan")

COLUMNS: dict[str, tuple[str, Sequence[Any]]] = {
    "k1": ("string", [None, "a", "b", ""]),
    "k2": ("double", [None, 0.0, 1.5, NAN]),
    "t": ("tinyint", [None, -128, 0, 1, 127]),
    "i": ("int", [None, -(2**31), 2, 3, 2**31 - 1]),
    "l": ("bigint", [None, -(2**63), -1, 5, 2**53 + 1, 2**62, 2**63 - 1]),
    "d": ("decimal(12,2)", [None, Decimal("-9999999999.99"), Decimal("0.01"), Decimal("0.05"), Decimal("7.00")]),
    "e": ("decimal(18,0)", [None, Decimal(10**18 - 1), Decimal(-(10**18) + 1), Decimal(3)]),
    "w": (
        "decimal(32,4)",
        [None, Decimal("9" * 28 + ".9999"), Decimal("-1.0001"), Decimal("2.5000"), Decimal("-" + "9" * 28)],
    ),
    "x": (
        "decimal(38,0)",
        [None, Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(10**37), Decimal(1), Decimal(-2)],
    ),
    "f": ("double", [None, 0.0, -0.0, 1.0, 0.1, 1e16, -1e16, 1e308, -1e308, 5e-324, NAN, float("inf"), float("-inf")]),
    "g": ("float", [None, 0.5, 0.10000000149011612, -3.0, NAN, 1.0000000200408773e20]),
    "s": ("string", [None, "", "a", "ä", "zz", "\U0001f600"]),
    "b": ("boolean", [None, True, False]),
    "z": ("binary", [None, b"", b"\x00", b"\xff\x00"]),
    "u": ("timestamp", [None, datetime.datetime(1970, 1, 1), datetime.datetime(2262, 4, 12, 1, 2, 3, 4)]),
    "y": ("date", [None, datetime.date(1970, 1, 1), datetime.date(9999, 12, 31), datetime.date(1, 1, 1)]),
}
NAMES = list(COLUMNS)


def _measures() -> list[Measure]:
    made = [("Count", None, None, types.BIGINT, False)]
    for name in NAMES[2:]:
        kind = types.parse_type(COLUMNS[name][0])
        made.append(("Count", name, kind, types.BIGINT, False))
        made.append(("Count", name, kind, types.BIGINT, True))
        made += [(f, name, kind, kind, False) for f in ("Min", "Max")]
        if digits := types.decimal_digits(kind):
            p, s = digits
            summed, average = types.decimal(min(38, p + 10), s), types.decimal(min(38, p + 4), min(38, s + 4))
        elif types.is_integer(kind):
            summed, average = types.BIGINT, types.DOUBLE
        elif types.is_float(kind):
            summed, average = types.DOUBLE, types.DOUBLE
        else:
            continue
        made += [("Sum", name, kind, summed, d) for d in (False, True)]
        made += [("Average", name, kind, average, d) for d in (False, True)]
    made += [
        (f, "f", types.DOUBLE, types.DOUBLE, False) for f in ("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp")
    ]
    return [Measure(f"m{i}", *m) for i, m in enumerate(made)]


MEASURES = _measures()
KEYS = {name: Column(name, types.parse_type(COLUMNS[name][0])) for name in ("k1", "k2")}


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(threads=1) as duck:
        yield duck


def _row(rng: Random) -> Row:
    return tuple(rng.choice(values) for _, values in COLUMNS.values())


def _delta(changes: Sequence[tuple[Row, int]]) -> pa.Table:
    arrays = [
        pa.array([row[i] for row, _ in changes], types.arrow(types.parse_type(kind)))
        for i, (kind, _) in enumerate(COLUMNS.values())
    ]
    weights = pa.array([n for _, n in changes], pa.int64())
    return pa.table([*arrays, weights], names=[*NAMES, "¤w"])


def _batch(rng: Random, live: list[Row]) -> list[tuple[Row, int]]:
    """Inserts, copies, deletes and updates of one column; also a row that comes and goes within the batch."""
    changes: list[tuple[Row, int]] = []
    for _ in range(rng.choice([0, 1, 2, 5, 12])):
        kind = rng.choice(["insert", "insert", "copy", "delete", "update", "blink"])
        if kind == "insert" or not live:
            live.append(_row(rng))
            changes.append((live[-1], 1))
        elif kind == "copy":
            times = rng.choice([1, 3])
            row = rng.choice(live)
            live += [row] * times
            changes.append((row, times))
        elif kind == "blink":
            row = _row(rng)
            changes += [(row, 1), (row, -1)]
        else:
            row = live.pop(rng.randrange(len(live)))
            changes.append((row, -1))
            if kind == "update":
                place = rng.randrange(len(NAMES))
                live.append((*row[:place], rng.choice(COLUMNS[NAMES[place]][1]), *row[place + 1 :]))
                changes.append((live[-1], 1))
    if rng.random() < 0.1:  # empty everything
        changes += [(row, -1) for row in live]
        live.clear()
    return changes


def _known(row: Row) -> Row:
    return tuple(reference.same(v) for v in row)


def _merged(duck: PreparedStatements, spec: AggregateSpec, states: list[Arrangement], rng: Random) -> list[Arrangement]:
    """Any adjacent runs may be merged at any time."""
    result = []
    for port, state in enumerate(states):
        if len(state.runs) > 1 and rng.random() < 0.4:
            low = rng.randrange(len(state.runs) - 1)
            high = rng.randrange(low + 2, len(state.runs) + 1)
            run = aggregate.merge_state_runs(duck, spec, port, state.runs[low:high])
            state = Arrangement((*state.runs[:low], run, *state.runs[high:]))
        result.append(state)
    return result


@given(
    seed=st.integers(0, 2**32),
    keys=st.sampled_from([(), ("k1",), ("k2",), ("k1", "k2")]),
    measures=st.lists(st.sampled_from(MEASURES), max_size=6, unique=True),
    window=st.sampled_from([1, 2, 64]),
)
@example(seed=1, keys=("k1",), measures=MEASURES, window=1)
@example(seed=2, keys=(), measures=MEASURES, window=2)
def test_aggregates_equal_the_reference_after_every_batch(
    duck: PreparedStatements, seed: int, keys: tuple[str, ...], measures: list[Measure], window: int
) -> None:
    rng = Random(seed)
    spec = AggregateSpec(tuple(KEYS[k] for k in keys), tuple(measures))
    states = [Arrangement() for _ in range(aggregate.count_ports(spec))]
    live: list[Row] = []
    view: Rows = Counter()
    seen: Rows = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extremes, "_FIRST_WINDOW", window)
        patch.setattr(extremes, "_GROWTH", 2)
        for batch in range(8):
            before = list(live)
            changes = _batch(rng, live)
            cut = rng.randrange(len(changes) + 1)
            tasks = [changes[:cut], changes[cut:]]
            prepared = [aggregate.prepare_deltas(duck, spec, _delta(part)) for part in tasks if part or not batch]
            if not prepared:
                continue
            deltas = [pa.concat_tables(port) for port in zip(*prepared, strict=True)]
            arrived = [d if d.num_rows or i == 0 else None for i, d in enumerate(deltas)]
            try:
                wanted = reference.aggregate(spec, NAMES, Counter(_known(r) for r in live))
            except OverflowError:
                with pytest.raises(EvaluationError, match="ARITHMETIC_OVERFLOW"):
                    aggregate.run_aggregate_step(duck, spec, states, arrived)
                live = before
                continue
            out, added = aggregate.run_aggregate_step(duck, spec, states, arrived)
            states = [s.with_runs(arrange(d)) for s, d in zip(states, added, strict=True)]
            if not before and not live and spec.keys:
                assert out.num_rows == 0
            view.update(reference.rows_of(out))
            view = Counter({row: n for row, n in view.items() if n})
            assert view == wanted
            states = _merged(duck, spec, states, rng)
            assert reference.rows_of(aggregate.full_output(duck, spec, states)) == wanted
            seen = wanted
    assert seen is not None


@given(seed=st.integers(0, 2**32))
def test_consolidation_equals_a_counter(duck: PreparedStatements, seed: int) -> None:
    rng = Random(seed)
    live: list[Row] = []
    changes = [change for _ in range(3) for change in _batch(rng, live)]
    got = consolidate(duck, _delta(changes))
    assert reference.rows_of(got) == reference.rows_of(_delta(changes))
    assert got.num_rows == len(_distinct_bits(got)), "a row occurs twice"
    assert got.schema == _delta(changes).schema


def _distinct_bits(table: pa.Table) -> set[str]:
    return {repr(row) for row in table.drop_columns(["¤w"]).to_pylist()}


def _hashed(rng: Random, rows: int, hashes: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([rng.choice([None, 1, 2]) for _ in range(rows)], pa.int64()),
            "s": pa.array([rng.choice([None, "x", "y"]) for _ in range(rows)], pa.string()),
            "¤w": pa.array([rng.choice([1, 1, 2, -1]) for _ in range(rows)], pa.int64()),
            "¤h": pa.array([rng.choice(hashes) for _ in range(rows)], pa.uint64()),
        }
    )


def _whole(pieces: Iterable[pa.Table], probe: pa.Table) -> pa.Table:
    none = pa.table({"pk": probe["pk"], "ps": probe["ps"], "s": probe["ps"], "¤w": probe["¤w"]}).slice(0, 0)
    return pa.concat_tables([none, *pieces])


@given(seed=st.integers(0, 2**32), how=st.sampled_from(["bisected", "guessed", "directory"]))
def test_lookups_and_merges_equal_a_nested_loop(duck: PreparedStatements, seed: int, how: str) -> None:
    rng = Random(seed)
    hashes = [0, 1, 2**63, 2**63 + 1, 2**64 - 1, 2**53 + 1, *(rng.getrandbits(64) for _ in range(5))]
    with pytest.MonkeyPatch.context() as patch:
        if how != "bisected":
            patch.setattr("viewkeeper.state.hash_index._MIN_INTERPOLATED_ROWS", 1)
            patch.setattr("viewkeeper.state.hash_index._MIN_INTERPOLATED_PROBES", 1)
            patch.setattr("viewkeeper.state.hash_index._ROWS_PER_PROBE", 10**9 if how == "directory" else 0)
            patch.setattr("viewkeeper.state.hash_index._NARROW_WINDOW", rng.choice([1, 2, 64]))
            patch.setattr("viewkeeper.state.hash_index._BUCKET_ROWS", rng.choice([1, 3]))
        tables = [consolidate(duck, _hashed(rng, rng.choice([0, 1, 5, 40]), hashes)) for _ in range(4)]
        arrangement = Arrangement().with_runs(*(arrange(t) for t in tables))
        everything = [row for t in tables for row in t.to_pylist()]
        probe = _hashed(rng, 12, hashes).rename_columns(["pk", "ps", "¤w", "¤h"])
        wanted: Rows = Counter()
        for p in probe.to_pylist():
            for r in everything:
                if p["¤h"] == r["¤h"]:
                    wanted[p["pk"], p["ps"], r["s"]] += p["¤w"] * r["¤w"]
        wanted = Counter({k: n for k, n in wanted.items() if n})
        if arrangement.runs:
            assert (
                reference.rows_of(_whole(lookup_rows(probe, arrangement, ["s"], rng.choice([1, 3, 1000])), probe))
                == wanted
            )
            asked = np.unique(probe["¤h"].to_numpy())
            sliced = arrangement.slice(asked)
            assert sorted(sliced["¤h"].to_pylist()) == sorted(
                r["¤h"] for r in everything if r["¤h"] in set(asked.tolist())
            )
            run = merge(duck, arrangement.runs)
            assert reference.rows_of(run.weighted_rows) == reference.rows_of(arrangement.rows())
            patch.setattr(MemoryBudget, "piece_bytes", rng.choice([4, 64, 1 << 20]))
            divided = run_by_hash_ranges(arrangement.runs, MemoryBudget(1 << 28), partial(merge, duck))
            assert reference.rows_of(divided.weighted_rows) == reference.rows_of(run.weighted_rows)
            assert divided.hashes.tolist() == run.hashes.tolist()
            assert reference.rows_of(_whole(lookup_rows(probe, Arrangement((run,)), ["s"], 1000), probe)) == wanted
            assert run.rows["¤h"].to_pylist() == sorted(run.rows["¤h"].to_pylist())


def _segment(columns: dict[str, str], key: tuple[str, ...]) -> tuple[Segment, ...]:
    return (
        Segment("source", (), tuple(Named(c, column(c, types.parse_type(kind))) for c, kind in columns.items()), key),
    )


TOP = Recompute(
    (_segment({"k": "bigint", "s": "string"}, ("k",)),),
    (None,),
    "SELECT k, s, ¤h FROM input0 QUALIFY row_number() OVER (PARTITION BY k ORDER BY s NULLS FIRST) <= 2",
    (Column("k", types.BIGINT), Column("s", types.STRING)),
    "the two first of each k",
    max_copies=2,
)


@given(seed=st.integers(0, 2**32), hashes=st.sampled_from([3, 1]))
def test_recompute_equals_sql_over_all_rows(duck: PreparedStatements, seed: int, hashes: int) -> None:
    """With one hash for all keys, every key collides with every other, and nothing changes but the time."""
    rng = Random(seed)
    states = [Arrangement(), Arrangement()]
    live: list[tuple[int | None, str | None]] = []
    view: Rows = Counter()
    for _ in range(6):
        changes: list[tuple[tuple[int | None, str | None], int]] = []
        for _ in range(rng.choice([0, 1, 4, 10])):
            if live and rng.random() < 0.5:
                changes.append((live.pop(rng.randrange(len(live))), -1))
            else:
                live.append((rng.choice([None, 1, 2]), rng.choice([None, "a", "b", "c"])))
                changes.append((live[-1], 1))
        delta = pa.table(
            {
                "k": pa.array([row[0] for row, _ in changes], pa.int64()),
                "s": pa.array([row[1] for row, _ in changes], pa.string()),
                "¤w": pa.array([n for _, n in changes], pa.int64()),
                "¤h": pa.array([(row[0] or 0) % hashes for row, _ in changes], pa.uint64()),
            }
        )
        out, added = recompute.run_recompute_step(duck, TOP, states, [delta])
        states = [s.with_runs(arrange(d)) for s, d in zip(states, added, strict=True)]
        if rng.random() < 0.3:
            states = [Arrangement((merge(duck, s.runs),)) if s.runs else s for s in states]
        view.update(reference.rows_of(out))
        view = Counter({row: n for row, n in view.items() if n})
        wanted: Rows = Counter()
        for k in (None, 1, 2):
            rows = sorted((r for r in live if r[0] == k), key=lambda r: (r[1] is not None, r[1] or ""))
            wanted.update(rows[:2])
        assert view == wanted
        assert reference.rows_of(TOP.full(duck, states)) == wanted


@pytest.mark.parametrize("name", [n for n in NAMES if types.parse_type(COLUMNS[n][0]).family in ORDERED_TYPE_FAMILIES])
@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_a_threshold_meets_what_changes_sides(name: str, op: str, duck: PreparedStatements) -> None:
    """The rows between old and new threshold change a comparison's result exactly as all rows do."""
    kind, values = COLUMNS[name]
    rng = Random(f"{name}{op}")
    for number in range(12):
        rows = [(i, rng.choice(values), rng.choice((1, 1, 2))) for i in range(40)]
        runs = [arrange(_placed(duck, "v", kind, part)) for part in (rows[:25], rows[25:])]
        moves = [(0, rng.choice(values), -1), (1, rng.choice(values), 1)][number % 3 == 0 :]
        probe = _placed(duck, "s", kind, moves).rename_columns(["p", "s", "¤w", "¤h"])
        reach = "above" if ">" in op else "below"
        pieces = list(
            kinds_lookup.range_lookup(
                probe, "s", Arrangement(tuple(runs)), ["id", "v"], reach, rng.choice([1, 5, 1000])
            )
        )
        none = duck.run("SELECT id, v, s, r.¤w FROM r, p LIMIT 0", r=runs[0].weighted_rows, p=probe)
        found = pa.concat_tables([none, *pieces], promote_options="permissive")
        net = "SELECT id, sum(¤w)::BIGINT AS n FROM {} WHERE v {} s GROUP BY id HAVING sum(¤w) <> 0 ORDER BY id"
        slow = "(SELECT id, v, s, r.¤w * p.¤w AS ¤w FROM r, p)"
        everything = Arrangement(tuple(runs)).rows(["id", "v"])
        expected = duck.run(net.format(slow, op), r=everything, p=probe)
        assert duck.run(net.format("found", op), found=found).equals(expected), (rows, moves)


def _placed(duck: PreparedStatements, name: str, kind: str, rows: Sequence[tuple[int, Any, int]]) -> pa.Table:
    ids, values, weights = zip(*rows, strict=True)
    table = pa.table(
        {"id": ids, name: pa.array(values, types.arrow(types.parse_type(kind))), "¤w": pa.array(weights, pa.int64())}
    )
    exprs = (Named("id", column("id", types.BIGINT)), Named(name, column(name, types.parse_type(kind))))
    present = Expr("IsNotNull", types.BOOLEAN, (column(name, types.parse_type(kind)),), nullable=False)
    segment = Segment("x", (present,) if name == "v" else (), exprs, (name,), ordered=True)
    return duck.run(segment.sql, input=table)
