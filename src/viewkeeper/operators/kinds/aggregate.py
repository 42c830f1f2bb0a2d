"""Aggregation: groups are a vector space, so the new state of a group is the old one plus the delta's.

    rows ──prepare──▶ port 0: one vector a group (`¤n` = Σ weights, counts, exact sums)     ─▶ state, added up by group
                 └──▶ port i: (group, value, `¤w`) for an argument of Min, Max or DISTINCT  ─▶ state, a multiset
    step:  old = Σ state,  new = old + Δ,  emit −read(old) +read(new) for each touched group where they differ

A group exists while `¤n` > 0. Without keys there is one row from the first load on, also over nothing: a row of zeros
is its seed. Sums of doubles are further rows of port 0: `¤b` tells accumulator and bucket, `¤x` is the integer
(`exact`); on the vectors' own rows `¤b` is −1.

DISTINCT counts a value when its weight leaves or reaches zero. Those transitions are rows with weight ±1, and go
through the same accumulators. The values port of an argument that is only used with DISTINCT is arranged by group and
value (the hash's top 16 bits are the group's, by which it is distributed), so only the touched values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction, Defect, EvaluationError
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk, same_words, taken
from viewkeeper.model.int128 import Wide
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.operators.aggregation import (
    extremes,
    finish,
    keyed_state,
    preaggregate,
    row_groups,
    shared_measures,
    sql,
)
from viewkeeper.operators.aggregation.groups import group
from viewkeeper.operators.aggregation.shared_measures import Fact
from viewkeeper.operators.aggregation.spec import VALUE_FUNCTIONS, AggregateSpec, Layout, layout, with_raw
from viewkeeper.operators.chunked_execution import stepped, touched
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.keyed_state import Shelf
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import LATER, Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidation
from viewkeeper.state.run import Arrangement, Run, addition, distinct_hashes, merge


@dataclass(frozen=True)
class Aggregate(Operator):
    """State: the vectors by group, and a multiset of values for each argument of Min, Max or DISTINCT."""

    source: tuple[Segment, ...]
    spec: AggregateSpec
    exchanges: int
    several: bool = field(default=False, metadata={LATER: True})
    """Whether views of different measures share it: then columns tell what does not fit (`facts`)."""
    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    compacts: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return _columns(self.spec, self.several)

    @cached_property
    def adds_up(self) -> str | None:
        return shared_measures.adds_up(self.source, self.spec)

    @cached_property
    def facts(self) -> Mapping[str, Fact]:
        return shared_measures.facts(self.source, self.spec)

    def of_facts(self, wanted: Sequence[Fact]) -> Aggregate:
        source, spec = shared_measures.made_of(self.source, self.spec, wanted)
        return Aggregate(source, spec, ports(spec), several=True)

    @property
    def groups_by(self) -> tuple[str, ...]:
        return self.key_columns

    @property
    def known_by(self) -> tuple[str, ...]:
        return self.key_columns

    def plainly(self, segment: Segment) -> Segment:
        return shared_measures.unguarded(self.spec, segment) if self.several else segment

    @property
    def slots(self) -> int:
        return self.exchanges

    @property
    def arity(self) -> int:
        """Rows are pre-aggregated before they travel: partial sums, and the values of each counted argument."""
        return self.exchanges

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.spec.keys)

    def arriving(self, duck: Duck, port: int, delta: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """A group may have vectors from several pieces, and those of a piece are few. `Cells` gives vectors as such."""
        if "¤n" in delta.column_names:
            yield from ((0, rows) for rows in (delta.drop_columns([WEIGHT]),) if rows.num_rows)
        elif delta.num_rows:
            yield from self._prepared(duck, delta)

    def run(self, site: Site, ports: Ports) -> Iterable[pa.Table]:
        state = site.state(self)
        plan = layout(self.spec)
        is_single = not plan.values and not plan.bucketed
        size = touched(site, state, ports, single=is_single) if self.spec.keys else 0
        return stepped(site, self, ports, lambda part: step(site.duck, self.spec, state, part, self.several), size)

    @property
    def shelves(self) -> tuple[tuple[Shelf, ...], ...]:
        return keyed_state.of(self.spec)

    def few(self, shelved: Sequence[Sequence[Table]]) -> row_groups.Groups | None:
        return row_groups.groups(self.spec, self.source, shelved)

    def compacted(self, duck: Duck, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        return compacted(duck, self.spec, port, deltas)

    def merged(self, duck: Duck, slot: int, runs: Sequence[Run]) -> Run:
        return additive_merge(duck, self.spec, slot, runs)

    def seed(self, duck: Duck) -> Iterator[tuple[int, pa.Table]]:
        """Without keys there is a row over nothing."""
        if not self.spec.keys:
            rows = [pa.field(c.name, types.arrow(c.type)) for c in self.source[0].columns]
            yield from self._prepared(duck, pa.schema([*rows, pa.field(WEIGHT, pa.int64())]).empty_table())

    def full(self, duck: Duck, states: Sequence[Arrangement]) -> pa.Table:
        return full(duck, self.spec, states, self.several)

    def describe(self, told: Told) -> str:
        calls = [
            f"{m.function}({'DISTINCT ' if m.distinct else ''}{m.argument or '*'}) AS {m.name}"
            for m in self.spec.measures
        ]
        return f"aggregate by ({', '.join(self.key_columns)}): {', '.join(calls) or 'distinct rows'}"

    def reason(self, told: Told) -> str:
        values = [m for m in self.spec.measures if m.distinct or m.function in VALUE_FUNCTIONS]
        together = f"the {len(self.spec.measures)} measures of several views in one state: " if self.several else ""
        if values:
            calls = sorted({"DISTINCT" if m.distinct else m.function.lower() for m in values})
            kept = f"{together}keeps each group's values with their counts"
            return f"{kept}: {', '.join(calls)} cannot be taken back from a sum"
        if not self.spec.measures:
            return "one row a group: its count"
        return f"{together}sums and counts, one row a group: a change is added or subtracted"

    def drawn(self, told: Told) -> Drawn:
        source = self.source[0]
        calls = tuple(
            f"{m.function.lower()}({'distinct ' if m.distinct else ''}"
            f"{told.given(source, m.argument) if m.argument else '*'})"
            for m in self.spec.measures
        )
        return Drawn(
            "aggregate", calls or ("distinct rows",), key=tuple(told.given(source, k) for k in self.key_columns)
        )

    def traced(self, text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        given = super().traced(text)
        calls = {m.name: f"{m.function.lower()}({given.get(m.argument or '', '*')})" for m in self.spec.measures}
        return {**given, **calls}

    def _prepared(self, duck: Duck, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        return ((i, table) for i, table in enumerate(prepare(duck, self.spec, rows)) if table.num_rows)


def ports(spec: AggregateSpec) -> int:
    """How many deltas `prepare` makes: the vectors, and the values of each argument of Min, Max or DISTINCT."""
    return 1 + len(layout(spec).values)


def prepare(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> list[pa.Table]:
    """One delta for each port, from rows with key columns, argument columns and `¤w`."""
    plan = layout(spec)
    vectors = _vectors(duck, spec, rows, distinct=False)
    return [vectors, *(duck.run(sql.values(spec, argument), rows=rows) for argument in plan.values)]


def step(
    duck: Duck,
    spec: AggregateSpec,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    several: bool = False,
) -> tuple[pa.Table, list[pa.Table]]:
    """The output's delta, and what to add to the state of each port. For `several` views nothing is raised.

    A delta may hold several vectors of one group, from several tasks. A values port may be None: nothing arrived.
    """
    plan = layout(spec)
    vectors = deltas[0]
    if vectors is None:
        raise Defect("An aggregate was given no vectors.")
    kept, flips = [vectors], []
    for i, argument in enumerate(plan.values, start=1):
        delta = deltas[i]
        change = _no_values(spec, argument) if delta is None else extremes.by_value(duck, delta, argument)
        kept.append(change)
        if argument in plan.distincts:
            flips.append(_flips(duck, spec, argument, states[i], change))
    if flips:
        # One pass for all arguments: a row has the value of one of them, and NULL adds nothing to the others.
        together = pa.concat_tables(flips, promote_options="default").combine_chunks()
        vectors = pa.concat_tables([vectors, _vectors(duck, spec, together, distinct=True)])
    out = _difference(duck, spec, states, [vectors, *kept[1:]], several)
    kept[0] = _without_zeros(vectors, plan, seed=not spec.keys and not states[0].num_rows)
    return out, kept


def full(duck: Duck, spec: AggregateSpec, states: Sequence[Arrangement], several: bool = False) -> pa.Table:
    """The whole output: what a step from nothing to the present state emits."""
    plan = layout(spec)
    if not states[0].runs:
        return _output_schema(spec, several).empty_table()
    vectors = states[0].rows()
    values = [
        extremes.by_value(duck, states[i].rows(), argument) if states[i].runs else _no_values(spec, argument)
        for i, argument in enumerate(plan.values, start=1)
    ]
    nothing = [Arrangement()] * len(states)
    return _difference(duck, spec, nothing, [vectors, *values], several)


def additive_merge(duck: Duck, spec: AggregateSpec, port: int, runs: Sequence[Run]) -> Run:
    """The runs of one port as one: vectors add up and empty groups go (never the global one); values consolidate."""
    plan = layout(spec)
    if port == 0:
        return merge(duck, runs, plan.additive, keep_zero=not spec.keys)
    return merge(duck, runs, order=[plan.values[port - 1]])


def compacted(duck: Duck, spec: AggregateSpec, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
    """What arrived at a port, from many pieces of the rows, with one row for each group or value.

    A vector of zeros stays: it says that the group is touched.
    """
    plan = layout(spec)
    whole = pa.concat_tables(deltas)
    if port == 0:
        return duck.run(addition(whole.schema, plan.additive, keep_zero=True), delta=whole)
    return duck.run(consolidation(whole.schema), delta=whole)


def _vectors(duck: Duck, spec: AggregateSpec, rows: pa.Table, *, distinct: bool) -> pa.Table:
    """The rows' vectors, for the plain accumulators, or for those that see each value once."""
    if not distinct and (found := preaggregate.vectors(duck, spec, rows)) is not None:
        return found
    fed = tuple(a for a in layout(spec).accumulators if a.distinct == distinct)
    return duck.run(sql.vectors(spec, fed, distinct), rows=with_raw(rows, fed))


def _flips(duck: Duck, spec: AggregateSpec, argument: str, state: Arrangement, change: pa.Table) -> pa.Table:
    """The values that came to be or ceased to be in their group, with weight 1 or −1."""
    old = state.slice(distinct_hashes(change)) if state.runs else change.slice(0, 0)
    return duck.run(sql.flips(spec, argument), old=old.select(change.column_names), delta=change)


def _difference(
    duck: Duck, spec: AggregateSpec, states: Sequence[Arrangement], changes: Sequence[pa.Table], several: bool
) -> pa.Table:
    """−read(old) +read(old + change), where they differ. Extremes are read from the values' states and changes."""
    plan = layout(spec)
    groups = group(duck, spec, plan, states[0], changes[0])
    count = groups.count
    if (groups.sides.rows < 0).any():
        raise Contradiction(f"A group of {[k.name for k in spec.keys]} has fewer than no rows.")
    is_there = groups.sides.rows > 0
    if not spec.keys:
        is_there = np.concatenate([groups.seen, np.ones(count, np.bool_)])
    found = {
        argument: extremes.change(duck, spec, argument, states[i], changes[i], groups.keys)
        for i, argument in enumerate(plan.values, start=1)
        if argument in plan.extremes
    }
    changed = is_there[:count] != is_there[count:]
    columns, unfit = [], []
    for measure in spec.measures:
        if measure.function in VALUE_FUNCTIONS and measure.argument is not None:
            column = pa.concat_arrays([found[measure.argument][measure.function, side] for side in ("old", "new")])
        else:
            column, beyond = finish.read(measure, groups.sides)
            if several and beyond is not None:
                changed |= beyond[:count] != beyond[count:]
                unfit.append(pa.array(beyond))
            elif beyond is not None and (beyond & is_there)[count:].any():
                raise EvaluationError(shared_measures.overflow_text(measure))
        changed |= _differ(column.slice(0, count), column.slice(count))
        columns.append(column)
    went, came = np.flatnonzero(is_there[:count] & changed), np.flatnonzero(is_there[count:] & changed)
    keys, places = pa.array(np.concatenate([went, came])), pa.array(np.concatenate([went, came + count]))
    weights = np.ones(len(places), np.int64)
    weights[: len(went)] = -1
    named = [taken(one_chunk(groups.keys.column(k.name)), keys) for k in spec.keys]
    measured = [taken(column, places) for column in (*columns, *unfit)]
    return pa.Table.from_arrays([*named, *measured, pa.array(weights)], schema=_output_schema(spec, several))


def _differ(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two columns are distinct: NULL equals NULL and NaN equals NaN."""
    if not pa.types.is_floating(one.type) and (same := same_words(one, other)) is not None:
        return ~same
    unequal = pc.not_equal(one, other)
    if pa.types.is_floating(one.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if unequal.null_count:
        unequal = pc.coalesce(unequal, pc.xor(pc.is_null(one), pc.is_null(other)))
    found: npt.NDArray[np.bool_] = unequal.to_numpy(zero_copy_only=False)
    return found


def _without_zeros(vectors: pa.Table, plan: Layout, *, seed: bool) -> pa.Table:
    """Vectors that add nothing need not be stored, except one that says a global row exists."""
    if seed or not vectors.num_rows:
        return vectors
    kept = np.zeros(vectors.num_rows, np.bool_)
    for name in plan.additive:
        column = one_chunk(vectors.column(name))
        if pa.types.is_decimal(column.type):
            value = Wide.of(column)
            kept |= (value.low != 0) | (value.high != 0)
        else:
            kept |= column.to_numpy() != 0
        if kept.all():
            return vectors
    return vectors.filter(pa.array(kept))


def _no_values(spec: AggregateSpec, argument: str) -> pa.Table:
    kind = next(m.argument_type for m in spec.measures if m.argument == argument)
    if kind is None:
        raise Defect(f"{argument} is the argument of no measure.")
    keys = [(k.name, types.arrow(k.type)) for k in spec.keys]
    return pa.schema([*keys, (argument, types.arrow(kind)), (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()


def _columns(spec: AggregateSpec, several: bool) -> tuple[Column, ...]:
    told = [m for m in spec.measures if several and shared_measures.overflows(m)]
    flags = (Column(shared_measures.beyond(m.name), types.BOOLEAN, nullable=False) for m in told)
    return (*spec.keys, *(m.column for m in spec.measures), *flags)


@lru_cache(maxsize=1024)
def _output_schema(spec: AggregateSpec, several: bool) -> pa.Schema:
    columns = _columns(spec, several)
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])
