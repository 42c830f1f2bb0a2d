"""EXISTS and NOT EXISTS of another value in the group: without a statement what the statement says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viewkeeper import expressions
from viewkeeper.errors import Contradiction
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.exists_other_value import match_other_value_query
from viewkeeper.operators.exists_other_value_step import find_other_value_query, run_other_value_step
from viewkeeper.operators.kinds import Recompute, recompute
from viewkeeper.operators.operator import slot_names
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.segment_execution import run_segment
from viewkeeper.operators.table_slices import TableSlices
from viewkeeper.plan.logical.nodes import Expr, Named, column
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Arrangement, Run, arrange, merge

from . import reference

LATE = Expr("GreaterThan", types.BOOLEAN, (column("late", types.INT), column("due", types.INT)))
TABLE = pa.schema([("g", pa.int64()), ("v", pa.int32()), ("late", pa.int32()), ("due", pa.int32())])
NAMES = TABLE.names


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(expressions.register_functions, threads=1) as duck:
        yield duck


def port(side: str, where: tuple[Expr, ...] = ()) -> tuple[Segment, ...]:
    group, value = column("g", types.BIGINT), column("v", types.INT)
    named = (Named(f"{side}0", group), Named(f"{side}1", value), Named(f"{side}k0", group))
    return (Segment("source", where, named, (f"{side}k0",)),)


def operator(is_semi: bool, shared: tuple[str | None, str | None], late: tuple[bool, bool]) -> Recompute:
    ports = tuple(port(side, (LATE,) if is_late else ()) for side, is_late in zip("lr", late, strict=True))
    compared = '(("r0" = "l0") AND (NOT ("r1" = "l1")))'
    sql = f'SELECT "l0" AS "o0", "l1" AS "o1", input0.¤h FROM input0 WHERE {"" if is_semi else "NOT "}EXISTS '
    output = (Column("o0", types.BIGINT), Column("o1", types.INT))
    return Recompute(ports, shared, f"{sql}(SELECT 1 FROM input1 WHERE {compared})", output, "a join")


class Site:
    """Arrangements of two tables and of an operator, as batches find them."""

    def __init__(self, duck: PreparedStatements, piece: int = 1 << 20) -> None:
        self.duck, self.skipped = duck, dict[str, int]()
        self.memory: Any = SimpleNamespace(piece=piece, grown=1 << 30, aside=lambda rows: rows)
        self.published: dict[str, Arrangement] = {}
        self.added: dict[str, Run] = {}

    def old(self, slot: str) -> Arrangement:
        return self.published.get(slot, Arrangement())

    def fresh(self, slot: str) -> Arrangement:
        return self.old(slot).with_runs(*([self.added[slot]] if slot in self.added else []))

    def state(self, made: Recompute) -> list[Arrangement]:
        return [self.old(slot) for slot in slot_names(made)]

    def add(self, made: Recompute, runs: Sequence[Run]) -> None:
        self.added |= dict(zip(slot_names(made), runs, strict=True))

    def publish(self, rng: Random) -> None:
        for slot in {*self.added}:
            whole = self.fresh(slot)
            merged = whole.runs and rng.random() < 0.3
            self.published[slot] = Arrangement((merge(self.duck, whole.runs),)) if merged else whole
        self.added = {}


def expected(rows: Sequence[Counter[Any]], late: tuple[bool, bool], is_semi: bool) -> Counter[Any]:
    left, right = (
        Counter({row: n for row, n in side.items() if not only or (None not in row[2:] and row[2] > row[3])})
        for side, only in zip(rows, late, strict=True)
    )
    found: Counter[Any] = Counter()
    for (g, v, *_), n in left.items():
        others = [row for row in right if row[0] == g and None not in (g, v, row[1]) and row[1] != v]
        found[g, v] += n if bool(others) == is_semi else 0
    return Counter({row: n for row, n in found.items() if n})


@given(
    seed=st.integers(0, 2**32),
    is_semi=st.booleans(),
    shared=st.sampled_from([("a", "a"), ("a", "b"), (None, "a"), ("a", None), (None, None)]),
    late=st.tuples(st.booleans(), st.booleans()),
    nulls=st.booleans(),
    group=st.sampled_from([(0, 1, 2), (-5, 7, 2**40), (-(2**63), 0, 2**63 - 1)]),
    piece=st.sampled_from([1 << 20, 200]),
)
@example(0, False, (None, "a"), (False, True), False, (0, 1, 2), 200)
@example(1, True, (None, "a"), (False, True), False, (0, 1, 2), 200)
@example(3, True, ("a", "a"), (True, False), False, (0, 1, 2), 200)
def test_rows_with_another_value(
    duck: PreparedStatements,
    seed: int,
    is_semi: bool,
    shared: tuple[str | None, str | None],
    late: tuple[bool, bool],
    nulls: bool,
    group: tuple[int, ...],
    piece: int,
) -> None:
    """Two operators over the same tables, of which the second may find rows that the first has taken."""
    rng = Random(seed)
    made, site = operator(is_semi, shared, late), Site(duck, piece)
    second = operator(not is_semi, shared, (True, late[1]))
    views = {made: Counter[Any](), second: Counter[Any]()}
    form = find_other_value_query(made)
    assert form is not None
    live = {name: Counter[Any]() for name in ("a", "b")}
    read = ["a" if shared[0] == shared[1] == "a" else (shared[i] or ("left", "right")[i]) for i in range(2)]
    live |= {name: Counter[Any]() for name in read}
    for _ in range(5):
        site.publish(rng)
        deltas = {name: changed(rng, rows, group, nulls) for name, rows in live.items()}
        for name, table in zip(read, shared, strict=True):
            if table is not None:
                of_table = deltas[name].append_column("¤h", pa.array(hash_keys(duck, deltas[name], ("g",))))
                site.added[f"{table}/0"] = arrange(of_table)
        ports = arriving(duck, made, [deltas[name] for name in read])
        whole = [tables[0] if tables else None for tables in ports]
        tables = TableSlices(site, made)  # type: ignore[arg-type]
        told = run_other_value_step(duck, made, form, site.state(made), whole, tables) if any(ports) else None
        if any(ports) and not nulls and group[-1] < 2**62:
            assert told is not None, "no statement is needed"
        states = site.state(made)
        at_hand = {i: partial(tables.read_port_rows, i) for i, table in enumerate(shared) if table is not None}
        wanted, kept = recompute.run_recompute_step(duck, made, states, whole, at_hand)
        if told is not None:
            assert reference.rows_of(told[0]) == reference.rows_of(wanted)
            for one, other in zip(told[1], kept, strict=True):
                assert one.schema.equals(other.select(one.column_names).schema)
                assert hashed(one) == hashed(other)
        for each, only, wants in ((made, late, is_semi), (second, (True, late[1]), not is_semi)):
            came = arriving(duck, each, [deltas[name] for name in read])
            for output in each.run(site, came) if any(came) else ():  # type: ignore[arg-type]
                for row, n in reference.rows_of(output).items():
                    views[each][row] += n
            view = Counter({row: n for row, n in views[each].items() if n})
            assert view == expected([live[name] for name in read], only, wants)


def arriving(duck: PreparedStatements, made: Recompute, deltas: Sequence[pa.Table]) -> list[list[pa.Table]]:
    arrived = [run_segment(duck, port[0], delta) for port, delta in zip(made.inputs, deltas, strict=True)]
    return [[rows] if rows.num_rows else [] for rows in arrived]


def hashed(rows: pa.Table) -> Counter[Any]:
    return Counter({str(row): 1 for row in rows.select(sorted(rows.column_names)).to_pylist()})


def changed(rng: Random, live: Counter[Any], groups: tuple[int, ...], nulls: bool) -> pa.Table:
    """A change of a table's rows, and the table after it."""
    none = [None] if nulls else []
    change: Counter[Any] = Counter()
    for _ in range(rng.choice([0, 1, 4, 12])):
        rows = sorted(live, key=str)
        if rows and rng.random() < 0.5:
            row, n = rng.choice(rows), -1
        else:
            row = (rng.choice([*groups, *none]), rng.choice([1, 2, -3, *none]), rng.choice([1, 2, *none]), 1)
            n = rng.choice([1, 1, 2])
        live[row] += n
        change[row] += n
        if not live[row]:
            del live[row]
    rows = [row for row, n in change.items() if n]
    columns = [pa.array([row[i] for row in rows], TABLE.field(i).type) for i in range(len(NAMES))]
    return pa.table([*columns, pa.array([change[row] for row in rows], pa.int64())], names=[*NAMES, "¤w"])


@pytest.mark.parametrize(
    "text",
    [
        'SELECT "l0" AS "o0", "l1" AS "o1", input0.¤h FROM input0 WHERE EXISTS (SELECT 1 FROM input1 WHERE {})',
        'SELECT "l0" AS "o0", input0.¤h FROM input0 WHERE EXISTS (SELECT 1 FROM input1 WHERE {})',
    ],
)
@pytest.mark.parametrize(
    "condition",
    [
        '(("r0" = "l0") AND (NOT ("r0" = "l1")))',
        '(("r0" = "l0") AND (NOT ("r1" = "l0")))',
        '(("r0" = "l0") AND ("r1" = "l1"))',
        '(("r0" = "l0") AND (NOT ("r1" = "l1")) AND (NOT ("r2" = "l1")))',
        '(("l1" = "l0") AND (NOT ("r1" = "l1")))',
        '(("r0" = "r1") AND (NOT ("r1" = "l1")))',
    ],
)
def test_what_says_something_else_is_left_to_the_statement(text: str, condition: str) -> None:
    ports = (port("l"), port("r"))
    output = (Column("o0", types.BIGINT), Column("o1", types.INT))[: text.count(" AS ")]
    assert find_other_value_query(Recompute(ports, (None, None), text.format(condition), output, "a join")) is None


def test_a_name_that_both_sides_have_is_left_to_the_statement() -> None:
    """Within EXISTS it is the inner one's."""
    text = 'SELECT "g" AS "o0", "v" AS "o1", input0.¤h FROM input0 WHERE EXISTS (SELECT 1 FROM input1 WHERE {})'
    names = frozenset({"g", "v"})
    assert match_other_value_query(text.format('(("g" = "g") AND (NOT ("v" = "v")))'), names, names) is None


def test_a_negative_count_is_no_slice(duck: PreparedStatements) -> None:
    made, site = operator(True, (None, None), (False, False)), Site(duck)
    delta = pa.table({"g": pa.array([1]), "v": pa.array([1], pa.int32()), "¤w": pa.array([-1])})
    rows = [run_segment(duck, made.inputs[i][0], delta) for i in range(2)]
    with pytest.raises(Contradiction):
        list(made.run(site, [[rows[0]], [rows[1]]]))  # type: ignore[arg-type]
