"""Lookup: one step of a join path, `Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ`, where each ⋈ is a lookup of the delta's keys.

Weights multiply. Rows are matched by hash only; the segment that follows compares the keys. A lookup is linear, has no
state, and produces at most a piece of its output at a time. In an optional relation (`optional_relations`) the lookup
itself compares everything that decides on a match, so that it knows which rows have none.

A range lookup serves a comparison of a column v with a scalar that changes: only rows between its old and its new value
change their result.

    Σᵢ wᵢ·[v op sᵢ] = 0   for every v beyond all the sᵢ, if Σ wᵢ = 0

because there all comparisons have the same result. So for the changes (sᵢ, wᵢ) of a scalar, from its old to its new
value, the rows between them are enough; if it was or becomes NULL, appears or disappears, all rows on the side where
the comparison can hold are read. The rows are in the order of v (`segment.order_sql`); the segment that follows
compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.vector_predicates import rename_predicate
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model import types
from viewkeeper.model.names import HASH, ROW_INDEX
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import concat_deltas
from viewkeeper.operators.delta_join import plan
from viewkeeper.operators.delta_join.optional_relations import (
    MatchCondition,
    filter_matches,
    with_null_columns,
    with_row_numbers,
)
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import ExecutionContext, LookupSpec, Operator, Ports
from viewkeeper.operators.segment import OMITTED_IF_EMPTY, Segment
from viewkeeper.resources.memory import row_width
from viewkeeper.state.run import Arrangement, RunFilter, hashes_of, weights_of
from viewkeeper.state.run_cache import evaluate_predicates

_ROUNDING_SLACK = 2
"""Order hashes by which rounding may be wrong."""

_MAX_ORDER_HASH = 2**64 - 1


def range_lookup(
    probe: pa.Table, value: str, arrangement: Arrangement, columns: Sequence[str], range_side: str, max_rows: int
) -> Iterator[pa.Table]:
    """Yield each change of the scalar (its `value`) with each row whose comparison it may change, as `lookup_rows`
    does."""
    probe = probe.filter(pc.is_valid(probe[value]))  # no comparison with NULL holds
    low, high = _order_hash_range(probe, range_side)
    probe_columns = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    step = max(1, max_rows // max(1, int(probe.num_rows)))
    for run in arrangement.runs:
        start, stop = np.searchsorted(run.hashes, low, "left"), np.searchsorted(run.hashes, high, "right")
        for first in range(int(start), int(stop), step):
            rows = run.take(np.arange(first, min(first + step, int(stop))), columns)
            left = probe.select([*probe_columns, WEIGHT]).take(
                pa.array(np.repeat(np.arange(probe.num_rows), rows.num_rows))
            )
            right = rows.take(pa.array(np.tile(np.arange(rows.num_rows), probe.num_rows)))
            weight = pc.multiply_checked(left[WEIGHT], right[WEIGHT])
            arrays = [*(left[c] for c in probe_columns), *(right[c] for c in columns), weight]
            yield pa.table(arrays, names=[*probe_columns, *columns, WEIGHT])


def _order_hash_range(probe: pa.Table, range_side: str) -> tuple[np.uint64, np.uint64]:
    if not probe.num_rows:
        return np.uint64(1), np.uint64(0)
    order_hashes = hashes_of(probe)
    low, high = int(order_hashes.min()) - _ROUNDING_SLACK, int(order_hashes.max()) + _ROUNDING_SLACK
    if int(weights_of(probe).sum()) != 0:
        low, high = (low, _MAX_ORDER_HASH) if range_side == "above" else (0, high)
    return np.uint64(low), np.uint64(high)


MATCH_FLAG_COLUMN = Column(plan.MATCH_FLAG, types.BOOLEAN, nullable=False)
"""The match flag of a lookup in an optional relation: whether the row has a match."""

_STEP_TEXTS = {"left": "or NULLs", "anti": "without a match"}
_MIN_SHOWN_FAN_OUT = 1.05
"""Rows a probe from which EXPLAIN shows the fan-out of a step."""
_TITLES = {"": "look up", "left": "outer look-up of", "anti": "rows without a match in"}


@dataclass(frozen=True)
class Lookup(Operator):
    """Probe rows joined with the rows of an arrangement with the same hash.

    `new_state`: the arrangement includes this batch's changes; else it is as the last batch published it.
    `fetched_columns` pairs a column of the arrangement with its output column.
    """

    probe: tuple[Segment, ...]
    arrangement: str
    new_state: bool
    fetched_columns: tuple[tuple[str, Column], ...]
    is_on_load_path: bool = False
    """Whether this lookup also runs in a first load on Spark (the path of the join's last relation)."""
    range_side: str = field(default="", metadata={OMITTED_IF_EMPTY: True})
    """`above` or `below` for a range lookup: rows whose comparison with the probe's value, on this side of it, differs
    from that with another probe's; empty for an equality lookup."""
    optional: str = ""
    """`left`: rows without a match stay, with NULLs. `anti`: only rows without a match stay."""
    match: tuple[Expr, ...] = ()
    """For an optional relation: the conditions, over the columns of both sides, under which a row has a match."""
    has_match_flag: bool = False
    """Whether an output column `met` says which rows have a match."""
    kind: ClassVar[str] = "lookup"
    has_canceling_output: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.probe,)

    @property
    def columns(self) -> tuple[Column, ...]:
        fetched = () if self.optional == "anti" else tuple(c for _, c in self.fetched_columns)
        return (*self.probe[0].columns, *fetched, *((MATCH_FLAG_COLUMN,) if self.has_match_flag else ()))

    @property
    def new_state_lookups(self) -> tuple[str, ...]:
        return (self.arrangement,) if self.new_state else ()

    @property
    def lookup_columns(self) -> Mapping[str, frozenset[str]]:
        return {self.arrangement: frozenset(name for name, _ in self.fetched_columns)}

    @property
    def probed_arrangement(self) -> str:
        return self.arrangement

    @property
    def lookup(self) -> LookupSpec | None:
        return (
            None
            if self.range_side
            else LookupSpec(self.arrangement, self.new_state, self.fetched_columns, self.optional, self.match)
        )

    def takes_part(self, on_spark: bool) -> bool:
        return on_spark and self.is_on_load_path

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        if not ports[0]:
            return
        slot = f"{self.arrangement}/0"
        arrangement = context.new(slot) if self.new_state else context.old(slot)
        if self.optional:
            yield from self._run_optional(context, ports, arrangement)
            return
        if not arrangement.runs:
            return
        columns = [name for name, _ in self.fetched_columns]
        names = [*(c.name for c in self.columns), WEIGHT]
        if not self.range_side:
            arrangement = arrangement.runs_overlapping(np.concatenate([hashes_of(table) for table in ports[0]]))
        row_bytes = sum(run.width(columns) for run in arrangement.runs) / len(arrangement.runs)
        row_filter = self._build_row_filter(context)
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            probe = piece.combine_chunks()
            results = self._find_rows(
                probe, arrangement, columns, context.memory.piece_rows(row_width(probe) + row_bytes), row_filter
            )
            yield from (rows.rename_columns(names) for rows in results)

    def _run_optional(self, context: ExecutionContext, ports: Ports, arrangement: Arrangement) -> Iterator[pa.Table]:
        names_there, fetched = [name for name, _ in self.fetched_columns], [c for _, c in self.fetched_columns]
        probe_names = [c.name for c in self.probe[0].columns]
        names = [*(c.name for c in self.columns), WEIGHT]
        match, is_left = MatchCondition(self.match), self.optional == "left"
        if arrangement.runs:
            arrangement = arrangement.runs_overlapping(np.concatenate([hashes_of(table) for table in ports[0]]))
        row_bytes = sum(run.width(names_there) for run in arrangement.runs) / max(1, len(arrangement.runs))
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            probe = piece.combine_chunks()
            match_weights = np.zeros(probe.num_rows, np.int64)
            pieces = lookup_rows(
                with_row_numbers(probe),
                arrangement,
                names_there,
                context.memory.piece_rows(row_width(probe) + row_bytes),
            )
            candidates = (
                rows.rename_columns([*probe_names, ROW_INDEX, *(c.name for c in fetched), WEIGHT]) for rows in pieces
            )
            for matches in filter_matches(context.statements, match, candidates, match_weights):
                if is_left:
                    yield self._with_match_flag(matches, True).select(names)
            unmatched = probe.filter(pa.array(match_weights == 0))
            if unmatched.num_rows:
                yield self._with_match_flag(
                    with_null_columns(unmatched, fetched) if is_left else unmatched, False
                ).select(names)

    def _with_match_flag(self, rows: pa.Table, is_match: bool) -> pa.Table:
        if not self.has_match_flag:
            return rows
        return rows.append_column(MATCH_FLAG_COLUMN.name, pa.array(np.full(rows.num_rows, is_match)))

    def _build_row_filter(self, context: ExecutionContext) -> RunFilter | None:
        """Return the conditions on fetched columns alone that every consumer applies, for rows to be filtered before
        their columns are read; None if there are none."""
        names_there = {output.name: name for name, output in self.fetched_columns}
        renamed = [rename_predicate(condition, names_there) for condition in context.row_filter(self)]
        conditions = [condition for condition in renamed if condition is not None]
        return partial(evaluate_predicates, conditions) if conditions else None

    def _find_rows(
        self,
        probe: pa.Table,
        arrangement: Arrangement,
        columns: Sequence[str],
        max_rows: int,
        row_filter: RunFilter | None,
    ) -> Iterable[pa.Table]:
        if not self.range_side:
            return lookup_rows(probe, arrangement, columns, max_rows, row_filter)
        key = self.probe[0].key
        if key is None:
            raise Defect(f"{self.id} is probed without a key.")
        return range_lookup(probe, key[0], arrangement, columns, self.range_side, max_rows)

    def describe(self, context: ExplainContext) -> str:
        state = "new" if self.new_state else "old"
        arrangement = f"#{context.numbers[self.arrangement]}"
        if (table := self._table_name(context)) is not None:
            arrangement += f" {table}"
        take = ", ".join(f"{name} AS {c.name}" for name, c in self.fetched_columns)
        probe = ", ".join(self.probe[0].key or ())
        if self.range_side:
            return f"rows of {arrangement}, {state} state, that a move of {probe} passes, taking {take or 'nothing'}"
        if self.optional == "anti":
            return f"anti lookup ({probe}) in {arrangement}, {state} state: rows without a match"
        if self.optional:
            return f"outer lookup ({probe}) in {arrangement}, {state} state, taking {take or 'nothing'}"
        return f"lookup ({probe}) in {arrangement}, {state} state, taking {take or 'nothing'}"

    def describe_step(self, context: ExplainContext) -> str:
        table, probe = self._table_name(context), self.probe[0]
        key = ", ".join(context.describe_output(probe, k) for k in probe.key or ())
        match_text = f" {_STEP_TEXTS[self.optional]}" if self.optional else ""
        arrangement = f"#{context.numbers[self.arrangement]}" + (f" {table}" if table is not None else "")
        rows = context.fan_out.get(self.arrangement)
        fan_out = f", about {rows:,.1f} rows a probe" if rows is not None and rows >= _MIN_SHOWN_FAN_OUT else ""
        return f"({key}) in {arrangement}{match_text}, {'new' if self.new_state else 'old'} state{fan_out}"

    def reason(self, context: ExplainContext) -> str:
        arranged = context.dataflow.operators[self.arrangement]
        if arranged.arranged_table is not None:
            primary = {k.column for k in context.dataflow.tables[arranged.arranged_table].key}
            if primary <= set(arranged.arrangement_key):
                return "at most one row a probe: the key is unique"
        if self.range_side:
            return "a threshold: only the rows between its old and its new value, not all rows"
        if not self.probe[0].key:
            return "no equality to look up by: every probe meets all rows, so the cost follows the data"
        rows = context.fan_out.get(self.arrangement)
        return "rows a probe: not known yet" if rows is None else f"about {rows:,.1f} rows a probe"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        table, number, probe = self._table_name(context), context.numbers[self.arrangement], self.probe[0]
        return OperatorDescription(
            title=f"{_TITLES[self.optional]} {table or 'state'}",
            lines=(f"in #{number}, {'new' if self.new_state else 'old'}",),
            table=table,
            key=tuple(context.describe_output(probe, k) for k in probe.key or ()),
            reads=number,
        )

    def lineage(self, column_name: str) -> tuple[str, Expr] | None:
        fetched = next(((name, output) for name, output in self.fetched_columns if output.name == column_name), None)
        if fetched is None:
            return super().lineage(column_name)
        return self.arrangement, column(fetched[0], fetched[1].type)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        fetched = {
            output.name: expr_text(self.arrangement, column(name, output.type)) for name, output in self.fetched_columns
        }
        return {**super().column_texts(expr_text), **fetched}

    def _table_name(self, context: ExplainContext) -> str | None:
        """Return the name of the base table whose arrangement is probed, or None."""
        table = context.dataflow.operators[self.arrangement].arranged_table
        return None if table is None else context.names[table]


def lookup_rows(
    probe: pa.Table,
    arrangement: Arrangement,
    columns: Sequence[str],
    max_rows: int,
    row_filter: RunFilter | None = None,
) -> Iterator[pa.Table]:
    """Yield each probe row with each row of the same hash: the probe's columns, the arrangement's `columns`, and `¤w`.

    At most `max_rows` at a time: what follows is linear, so it can process each piece separately.
    """
    probe_columns = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    for probe_index, rows in arrangement.probe_pieces(hashes_of(probe), columns, max_rows, row_filter):
        left = probe.select([*probe_columns, WEIGHT]).take(pa.array(probe_index))
        weight = pc.multiply_checked(left.column(WEIGHT), rows.column(WEIGHT))
        yield pa.table(
            [*(left.column(c) for c in probe_columns), *(rows.column(c) for c in columns), weight],
            names=[*probe_columns, *columns, WEIGHT],
        )
