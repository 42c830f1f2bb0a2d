"""Aggregation: groups are a vector space, so the new state of a group is the old one plus the delta's.

    rows ──prepare──▶ port 0: one vector a group (`_n` = Σ weights, counts, exact sums)     ─▶ state, added up by group
                 └──▶ port i: (group, value, `_w`) for an argument of Min, Max or DISTINCT  ─▶ state, a multiset
    step:  old = Σ state,  new = old + Δ,  emit −read(old) +read(new) for each touched group where they differ

A group exists while `_n` > 0. Without keys there is one row from the first load on, also over nothing: a row of zeros
is its seed. Sums of doubles are further rows of port 0: `_b` tells accumulator and bucket, `_x` is the integer
(`exact`); on the vectors' own rows `_b` is −1.

DISTINCT counts a value when its weight leaves or reaches zero. Those transitions are rows with weight ±1, and go
through the same accumulators. The values port of an argument that is only used with DISTINCT is arranged by group and
value (the hash's top 16 bits are the group's, by which it is distributed), so only the touched values are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from viewkeeper.errors import EvaluationError
from viewkeeper.model import types
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators import aggregate_sql as sql
from viewkeeper.operators import exact, extremes
from viewkeeper.operators.arrangement import Arrangement, Run, distinct_hashes, merge
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.measures import VARIANCES, Accumulator, Layout, layout, needs, rescaled, with_raw
from viewkeeper.operators.variance import variances
from viewkeeper.plan.dataflow import HASH, AggregateSpec, Measure

__all__ = ["AggregateSpec", "Measure", "additive_merge", "full", "ports", "prepare", "step"]


def ports(spec: AggregateSpec) -> int:
    """How many deltas `prepare` makes: the vectors, and the values of each argument of Min, Max or DISTINCT."""
    return 1 + len(layout(spec).values)


def prepare(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> list[pa.Table]:
    """One delta for each port, from rows with key columns, argument columns and `_w`."""
    plan = layout(spec)
    vectors = _vectors(duck, spec, rows, distinct=False)
    return [vectors, *(duck.run(sql.values(spec, argument), rows=rows) for argument in plan.values)]


def step(
    duck: Duck, spec: AggregateSpec, states: Sequence[Arrangement], deltas: Sequence[pa.Table | None]
) -> tuple[pa.Table, list[pa.Table]]:
    """The output's delta, and what to add to the state of each port.

    A delta may hold several vectors of one group, from several tasks. A values port may be None: nothing arrived.
    """
    plan = layout(spec)
    vectors = deltas[0]
    assert vectors is not None
    kept = [vectors]
    for i, argument in enumerate(plan.values, start=1):
        delta = deltas[i]
        change = (
            _no_values(spec, argument) if delta is None else duck.run(sql.sorted_values(spec, argument), delta=delta)
        )
        kept.append(change)
        if argument in plan.distincts:
            flips = _flips(duck, spec, argument, states[i], change)
            vectors = pa.concat_tables([vectors, _vectors(duck, spec, flips, distinct=True, argument=argument)])
    touched = distinct_hashes(vectors)
    beside = {
        argument: extremes.change(duck, spec, argument, states[i], kept[i], vectors)
        for i, argument in enumerate(plan.values, start=1)
        if argument in plan.extremes
    }
    old = states[0].slice(touched) if states[0].runs else vectors.slice(0, 0)
    out = _difference(duck, spec, old, vectors, beside)
    kept[0] = _without_zeros(vectors, plan, seed=not spec.keys and not states[0].num_rows)
    return out, kept


def full(duck: Duck, spec: AggregateSpec, states: Sequence[Arrangement]) -> pa.Table:
    """The whole output: what a step from nothing to the present state emits."""
    plan = layout(spec)
    if not states[0].runs:
        return _output_schema(spec).empty_table()
    vectors = states[0].rows()
    beside = {
        argument: extremes.change(duck, spec, argument, Arrangement(), _values(spec, argument, states[i]), vectors)
        for i, argument in enumerate(plan.values, start=1)
        if argument in plan.extremes
    }
    return _difference(duck, spec, vectors.slice(0, 0), vectors, beside)


def additive_merge(duck: Duck, spec: AggregateSpec, port: int, runs: Sequence[Run]) -> Run:
    """The runs of one port as one: vectors add up and empty groups go (never the global one); values consolidate."""
    plan = layout(spec)
    if port == 0:
        return merge(duck, runs, plan.additive, keep_zero=not spec.keys)
    return merge(duck, runs, order=[plan.values[port - 1]])


def _vectors(
    duck: Duck, spec: AggregateSpec, rows: pa.Table, *, distinct: bool, argument: str | None = None
) -> pa.Table:
    """The rows' vectors, for the plain accumulators, or for those of one argument that see each value once."""
    plan = layout(spec)
    fed = tuple(a for a in plan.accumulators if a.distinct == distinct and argument in (None, a.argument))
    return duck.run(sql.vectors(spec, fed, distinct), rows=with_raw(rows, fed))


def _flips(duck: Duck, spec: AggregateSpec, argument: str, state: Arrangement, change: pa.Table) -> pa.Table:
    """The values that came to be or ceased to be in their group, with weight 1 or −1."""
    old = state.slice(distinct_hashes(change)) if state.runs else change.slice(0, 0)
    return duck.run(sql.flips(spec, argument), old=old.select(change.column_names), delta=change)


def _difference(
    duck: Duck, spec: AggregateSpec, old: pa.Table, delta: pa.Table, beside: dict[str, pa.Table]
) -> pa.Table:
    """−read(old) +read(old + delta), where they differ."""
    plan = layout(spec)
    old = old.select(delta.column_names)
    if not plan.bucketed and not beside:
        out = duck.run(f"WITH v AS ({sql.sums(spec)}), {sql.read(spec)}", old=old, delta=delta)
    else:
        sums = duck.run(sql.sums(spec), old=old, delta=delta)
        if plan.bucketed:
            sums = _with_doubles(spec, sums)
        inputs = {f"e{i}": beside[argument] for i, argument in enumerate(plan.extremes)}
        out = duck.run(f"WITH {sql.read(spec)}", v=sums, **inputs)
    _check(spec, out)
    kinds = _output_schema(spec)
    columns = []
    for name, kind in zip(kinds.names, kinds.types, strict=True):
        column = out.column(name)
        columns.append(rescaled(column, kind) if pa.types.is_decimal(kind) and column.type != kind else column)
    return pa.table(columns, schema=kinds)


def _check(spec: AggregateSpec, out: pa.Table) -> None:
    if out.num_rows == 0:
        return
    worst = out.column("_bad").to_numpy()
    assert worst.min() >= 0, f"a group of {[k.name for k in spec.keys]} has fewer than no rows"
    if worst.max() > 0:
        measure = spec.measures[int(worst.max()) - 1]
        raise EvaluationError(
            f"ARITHMETIC_OVERFLOW: {measure.function.lower()} ({measure.name}) does not fit {measure.type.upper()}."
        )


def _with_doubles(spec: AggregateSpec, sums: pa.Table) -> pa.Table:
    """The sums with what is read from bucket rows: the nearest double of each exact sum, and variances."""
    plan = layout(spec)
    lists = sums.column("_buckets").combine_chunks()
    offsets = lists.offsets.to_numpy()
    group = np.repeat(np.arange(len(lists)), np.diff(offsets))
    items = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    code = items.field("b").to_numpy().astype(np.int64)
    totals: dict[tuple[Accumulator, str], exact.Totals] = {}
    for i, accumulator in enumerate(plan.bucketed):
        mine = code // exact.BUCKETS == i
        part, where, bucket = items.filter(pa.array(mine)), group[mine], code[mine] % exact.BUCKETS
        for side in "on":
            totals[accumulator, side] = found = exact.Totals(where, bucket, part.field(side))
            if accumulator.kind == "exact":
                value = pa.array(exact.rounded(len(lists), found))
                sums = sums.append_column(f"{accumulator.name}_{side}", value)
    for measure in spec.measures:
        if measure.function in VARIANCES:
            count, first, second = needs(measure)
            for side in "on":
                counts = sums.column(f"{count.name}_{side}").to_numpy()
                value = variances(measure.function, counts, totals[first, side], totals[second, side])
                sums = sums.append_column(f"_{measure.name}_{side}", pa.array(value, pa.float64()))
    return sums


def _without_zeros(vectors: pa.Table, plan: Layout, *, seed: bool) -> pa.Table:
    """Vectors that add nothing need not be stored, except one that says a global row exists."""
    if seed:
        return vectors
    kept = np.zeros(vectors.num_rows, np.bool_)
    for name in plan.additive:
        for chunk_start, chunk in _chunks(vectors.column(name)):
            words = np.frombuffer(chunk.buffers()[1], np.uint64) if len(chunk) else np.zeros(0, np.uint64)
            wide = chunk.type.bit_width // 64
            words = words[chunk.offset * wide : (chunk.offset + len(chunk)) * wide].reshape(len(chunk), wide)
            kept[chunk_start : chunk_start + len(chunk)] |= words.any(axis=1)
    return vectors if kept.all() else vectors.filter(pa.array(kept))


def _chunks(column: pa.ChunkedArray) -> list[tuple[int, pa.Array]]:
    starts = np.cumsum([0, *(len(c) for c in column.chunks)])
    return list(zip(starts.tolist(), column.chunks, strict=False))


def _values(spec: AggregateSpec, argument: str, state: Arrangement) -> pa.Table:
    return state.rows() if state.runs else _no_values(spec, argument)


def _no_values(spec: AggregateSpec, argument: str) -> pa.Table:
    kind = next(m.argument_type for m in spec.measures if m.argument == argument)
    assert kind is not None
    keys = [(k.name, types.arrow(k.type)) for k in spec.keys]
    return pa.schema([*keys, (argument, types.arrow(kind)), (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()


def _output_schema(spec: AggregateSpec) -> pa.Schema:
    columns: tuple[Column, ...] = (*spec.keys, *(m.column for m in spec.measures))
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])
