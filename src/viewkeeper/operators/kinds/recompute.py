"""Recompute: the output of a key is a function of the rows of that key, so run the real SQL on its new rows.

    affected = the hashes in the delta
    Δoutput  = sql(new rows of the affected) − what was emitted for the affected

What was emitted is stored, not computed again from the old rows: with ties, `row_number` or LIMIT are no functions of
the bag, and only what was emitted can be taken back. The unit is the hash: a slice may hold the rows of two keys that
collide, and then both are computed and both are compared.

SQL sees each row as often as its weight says (at most `clip` times, for a top-k that can show no more), never a
negative one. Its inputs are the tables `input0`, `input1`, … with `_h`, and it gives `_h` with each row of its output.
Where the SQL asks whether a group has another value, sums say the same (`others`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.delta import weighted
from viewkeeper.model.names import FIRST, HASH, PLACE, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.arrangement import Arrangement, distinct_hashes, weights_of
from viewkeeper.operators.choosing import value_of
from viewkeeper.operators.comparing import all_hold
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.finding import Hashes
from viewkeeper.operators.folds import Fold, folded, high, low
from viewkeeper.operators.hashing import hashes
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.others import NOTHING, Ints, Others, Part, changed, others, part_of
from viewkeeper.operators.passing import passed
from viewkeeper.operators.segments import LATER, Segment
from viewkeeper.operators.steps import stepped, touched
from viewkeeper.operators.telling import Drawn, Told

_TAKEN, _FEW_ROWS = "taken ", 1 << 16
"""Of so many rows it is remembered that they were taken."""
NOTHING_SHARED: Mapping[int, Callable[[Hashes], pa.Table]] = {}


@dataclass(frozen=True)
class Recompute(Operator):
    """`sql` reads `input0`, `input1`, …, one for each port, with rows repeated by weight.

    State: each input by key, and the output last emitted. An input that is a base table is read from a shared
    arrangement of it (`shared`), through its segment. `why` says, for EXPLAIN, why no cheaper kind does it.
    """

    inputs: tuple[tuple[Segment, ...], ...]
    shared: tuple[str | None, ...]
    sql: str
    output: tuple[Column, ...]
    why: str
    clip: int | None = None
    folds: tuple[Fold, ...] = field(default=(), metadata={LATER: True})
    kind: ClassVar[str] = "recompute"
    stateful: ClassVar[bool] = True
    jointly: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.inputs

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.output

    @property
    def slots(self) -> int:
        return self.shared.count(None) + 1

    @property
    def looked_up(self) -> tuple[str, ...]:
        return tuple(s for s in self.shared if s is not None)

    @property
    def reads(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for port, shared in zip(self.inputs, self.shared, strict=True):
            if shared is not None:
                found[shared] = found.get(shared, frozenset()) | port[0].used()
        return found

    @property
    def key(self) -> tuple[str, ...]:
        return self.inputs[0][0].key or ()

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        at_hand = _Tables(site, self)
        shared = {port: partial(at_hand.rows, port) for port, table in enumerate(self.shared) if table is not None}
        state, form = site.state(self), _others(self)
        arrived = [table for tables in ports for table in tables]
        covered = None if form is None or not arrived else at_hand.covered(distinct_hashes(*arrived))
        looked_up = [site.fresh(f"{a}/0") for a in self.reads] if covered is None else []
        size = touched(site, [*state, *looked_up], ports) if self.key else 0

        def part(rows: list[pa.Table | None]) -> tuple[pa.Table, list[pa.Table]]:
            is_whole = sum(r.num_rows for r in rows if r is not None) == sum(t.num_rows for t in arrived)
            more = covered if is_whole else None
            found = None if form is None else _quickly(site.duck, self, form, state, rows, at_hand, more)
            return step(site.duck, self, state, rows, shared) if found is None else found

        return stepped(site, self, ports, part, size)

    def seed(self, duck: Duck) -> Iterator[tuple[int, pa.Table]]:
        """Without keys all rows are one slice, which is computed also over nothing."""
        if not self.key:
            yield 0, no_rows(self.inputs[0][0].columns)

    def full(self, duck: Duck, states: Sequence[Arrangement]) -> pa.Table:
        """All that was emitted and not taken back."""
        if not states[-1].runs:
            return no_rows(self.output).drop_columns([HASH])
        return consolidate(duck, states[-1].rows([c.name for c in self.output]))

    @property
    def unproven(self) -> str:
        return self.why

    def attempt(self, duck: Duck) -> None:
        rows = [no_rows(port[0].columns).drop_columns([WEIGHT]) for port in self.inputs]
        duck.run(_sql(self), **{f"input{i}": r for i, r in enumerate(rows)})

    def describe(self, told: Told) -> str:
        return f"recompute by ({', '.join(self.key)}): {self.why}"

    def reason(self, told: Told) -> str:
        if not self.key:
            return "no key to divide the rows by: every change computes all of them anew, so the cost follows the data"
        return "no law gives the change of the result from the change of the rows: the changed keys are computed anew"

    def drawn(self, told: Told) -> Drawn:
        return Drawn("recompute", (self.why,), key=tuple(told.given(self.inputs[0][0], k) for k in self.key))


def step(
    duck: Duck,
    operator: Recompute,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    shared: Mapping[int, Callable[[Hashes], pa.Table]] = NOTHING_SHARED,
) -> tuple[pa.Table, list[pa.Table]]:
    """The output's delta, and what to add to each state: the inputs' in order, then the emitted rows'.

    `shared` gives, for a port whose rows another operator keeps, the new rows of some hashes, each as often as its
    weight says, which is not negative; it has no state here, and its delta only tells the hashes.

    `states` are the inputs' arrangements and, last, the emitted rows'. A delta may be None: nothing at that port.
    Without keys all rows are one slice with hash 0, which is computed also over nothing.
    """
    *inputs, emitted = states
    changes = [
        no_rows(port[0].columns) if delta is None else delta if i in shared else consolidate(duck, delta)
        for i, (delta, port) in enumerate(zip(deltas, operator.inputs, strict=True))
    ]
    affected = distinct_hashes(*changes) if operator.inputs[0][0].key else np.zeros(1, np.uint64)
    if not len(affected):
        empty = no_rows(operator.output)
        return empty.drop_columns([HASH]), [*(c for i, c in enumerate(changes) if i not in shared), empty]
    own = iter(inputs)
    rows = [
        shared[i](affected) if i in shared else _new(duck, next(own), change, affected)
        for i, change in enumerate(changes)
    ]
    new = [_repeated(r, operator) for r in rows]
    kept = [c for i, c in enumerate(changes) if i not in shared]
    computed = duck.run(_sql(operator), **{f"input{i}": rows for i, rows in enumerate(new)})
    shown = weighted(folded(computed, operator.folds) if operator.folds else computed, 1)
    if emitted.runs:
        shown = pa.concat_tables([shown, _negated(emitted.slice(affected).select(shown.column_names))])
    difference = consolidate(duck, shown)
    return difference.drop_columns([HASH]), [*kept, difference]


class _Tables:
    """The rows of base tables, from shared arrangements: those of one are taken once for all ports that read it."""

    def __init__(self, site: Site, operator: Recompute) -> None:
        self._site, self._operator = site, operator
        self._found: dict[str, tuple[Hashes, pa.Table | None]] = {}

    def rows(self, port: int, hashes: Hashes) -> pa.Table:
        """The new rows of these hashes, as the port's own segment shows them."""
        arranged, segment = self._operator.shared[port], self._operator.inputs[port][0]
        if arranged is None:
            return no_rows(segment.columns)
        asked, rows = self._found.get(arranged, (None, None))
        if asked is not hashes:
            taken = self.taken(arranged, hashes)
            rows = None if taken is None else consolidate(self._site.duck, taken)
            self._found[arranged] = hashes, rows
        return no_rows(segment.columns) if rows is None else passed(self._site.duck, segment, rows)

    def taken(self, arranged: str, hashes: Hashes) -> pa.Table | None:
        """The table's new rows of these hashes, those that cancel each other too; None if it never had any."""
        arrangement = self._site.fresh(f"{arranged}/0")
        return arrangement.slice(hashes, sorted(self._operator.reads[arranged])) if arrangement.runs else None

    def kept(self, arranged: str, hashes: Hashes) -> pa.Table | None:
        """The same, for whoever else of this batch asks (`covered`)."""
        arrangement, columns = self._site.fresh(f"{arranged}/0"), sorted(self._operator.reads[arranged])
        known = arrangement.remembered(f"{_TAKEN}{columns}")
        if known is not None and known[0] is hashes:
            return known[1]
        rows = self.taken(arranged, hashes)
        if rows is not None and rows.num_rows <= _FEW_ROWS:
            arrangement.remember(f"{_TAKEN}{columns}", (hashes, rows))
        return rows

    def covered(self, hashes: Hashes) -> Hashes | None:
        """Hashes whose rows of the one table that is read were taken last, by another operator mostly, if these are
        among them, and not much less: they need not be sought again."""
        tables = self._operator.reads
        if len(tables) != 1:
            return None
        ((arranged, columns),) = tables.items()
        known = self._site.fresh(f"{arranged}/0").remembered(f"{_TAKEN}{sorted(columns)}")
        if known is None or not len(hashes) <= len(known[0]) <= 2 * len(hashes):
            return None
        places = np.minimum(np.searchsorted(known[0], hashes), len(known[0]) - 1)
        return known[0] if np.array_equal(known[0][places], hashes) else None


@lru_cache(maxsize=1024)
def _others(operator: Recompute) -> Others | None:
    """What the statement says of groups' other values, if it can be told of rows as they come: their segments must do
    without a statement, which also means that none of them can fail."""
    if len(operator.inputs) != 2 or operator.clip is not None or operator.folds:
        return None
    types_of = [{c.name: c.type for c in port[0].columns} for port in operator.inputs]
    form = others(operator.sql, *map(frozenset, types_of))
    if form is None:
        return None
    shown = {c.name: c.type for c in operator.output}
    for left, right, output in zip(form.left, form.right, form.shown, strict=True):
        if not types_of[0][left] == types_of[1][right] == shown[output] or not types.is_integer(shown[output]):
            return None
    kept = [port[0] for port, table in zip(operator.inputs, operator.shared, strict=True) if table is not None]
    given = [{n.name: n.expr for n in segment.exprs} for segment in operator.inputs[0]]
    is_by_group = all(named[k] == named[form.left[0]] for named in given for k in operator.key)
    is_hashed = not any(s.gather or s.ordered for port in operator.inputs for s in port)
    is_safe = all(s.is_exact and not s.products for s in kept)
    return form if operator.key and is_by_group and is_hashed and is_safe else None


def _quickly(
    duck: Duck,
    operator: Recompute,
    form: Others,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    tables: _Tables,
    covered: Hashes | None = None,
) -> tuple[pa.Table, list[pa.Table]] | None:
    """What `step` gives, without its statement; None if that takes one. `covered`: more hashes than those that arrived,
    whose rows are at hand; where nothing arrived, nothing changes."""
    affected = distinct_hashes(*(delta for delta in deltas if delta is not None)) if covered is None else covered
    *inputs, emitted = states
    own, kept = iter(inputs), []
    parts = _of_tables(operator, form, affected, tables)
    sides = zip(("left", "right"), (form.left, form.right), operator.inputs, operator.shared, deltas, strict=True)
    for role, names, port, table, delta in sides:
        if table is None:
            kept.append(no_rows(port[0].columns) if delta is None else consolidate(duck, delta))
            parts += [_part(rows, names, role) for rows in (kept[-1], _slice(next(own), affected, names))]
    parts.append(_part(_slice(emitted, affected, form.shown), form.shown, "emitted"))
    told = [part for part in parts if part is not None]
    found = changed(told, form.wanted) if len(told) == len(parts) else None
    if found is None:
        return None
    group, value, weight = found
    named = dict(zip(form.shown, (group, value), strict=True))
    columns = {c.name: pa.array(named[c.name], types.arrow(c.type)) for c in operator.output}
    hashed = hashes(duck, pa.table(dict.fromkeys(operator.key, columns[form.shown[0]])), operator.key)
    difference = pa.table({**columns, HASH: hashed, WEIGHT: weight})
    return difference.drop_columns([HASH]), [*kept, difference]


def _of_tables(operator: Recompute, form: Others, affected: Hashes, tables: _Tables) -> list[Part | None]:
    """The rows of shared arrangements; where both ports see the same columns of one, its rows are both sides'."""
    found: dict[tuple[str, Expr, Expr], dict[str, Ints]] = {}
    taken: dict[str, pa.Table | None] = {}
    sides = zip(("left", "right"), (form.left, form.right), operator.inputs, operator.shared, strict=True)
    for role, names, port, table in sides:
        if table is None:
            continue
        if table not in taken:
            taken[table] = tables.kept(table, affected)
        rows = taken[table]
        if rows is not None:
            exprs = {n.name: n.expr for n in port[0].exprs}
            met = all_hold(port[0].compared or (), rows)
            weights = weights_of(rows) if met.all() else np.where(met, weights_of(rows), 0)
            found.setdefault((table, exprs[names[0]], exprs[names[1]]), {})[role] = weights
    return [part_of([value_of(e, taken[table]) for e in exprs], roles) for (table, *exprs), roles in found.items()]


def _slice(state: Arrangement, affected: Hashes, names: Sequence[str]) -> pa.Table | None:
    return state.slice(affected, names) if state.runs else None


def _part(rows: pa.Table | None, names: Sequence[str], role: str) -> Part | None:
    if rows is None or not rows.num_rows:
        return NOTHING
    return part_of([rows.column(name) for name in names], {role: weights_of(rows)})


def _new(duck: Duck, state: Arrangement, change: pa.Table, affected: Hashes) -> pa.Table:
    """The rows of the affected hashes after the change."""
    if not state.runs:
        return change
    return consolidate(duck, pa.concat_tables([state.slice(affected).select(change.column_names), change]))


def _repeated(rows: pa.Table, operator: Recompute) -> pa.Table:
    """Each row as often as its weight."""
    weights = weights_of(rows)
    if (weights < 0).any():
        raise Contradiction("A slice holds fewer than no copies of a row.")
    rows = rows.drop_columns([WEIGHT])
    if not (weights > 1).any():
        return rows
    times = weights if operator.clip is None else np.minimum(weights, operator.clip)
    return rows.take(pa.array(np.repeat(np.arange(len(times)), times)))


@lru_cache(maxsize=1024)
def _sql(operator: Recompute) -> str:
    listed = [f"{quoted(c.name)}::{types.duckdb(c.type)} AS {quoted(c.name)}" for c in operator.output]
    if operator.folds:
        places = (PLACE, FIRST, *(n for f in operator.folds for n in (low(f), high(f))))
        listed += [f"{n}::BIGINT AS {n}" for n in places]
    columns = ", ".join(listed)
    return f"SELECT {columns}{', ' if columns else ''}{HASH}::UBIGINT AS {HASH} FROM ({operator.sql})"


def _negated(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(-weights_of(rows)))


def no_rows(columns: Sequence[Column]) -> pa.Table:
    """An empty delta of these columns, with weight and hash."""
    fields = [(c.name, types.arrow(c.type)) for c in columns]
    return pa.schema([*fields, (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()
