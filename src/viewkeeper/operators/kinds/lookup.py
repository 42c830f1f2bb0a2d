"""Lookup: the join's one step: `Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ`, and each ⋈ is a lookup of the delta's keys.

Weights multiply. Rows meet by hash only; the segment that follows compares the real keys. It is linear, keeps nothing,
and never makes more than a piece of its output at once. Of an `optional` relation (`operators.optional`) the lookup
itself compares all that decides on a match, so that it knows of the rows that have none.
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

# A threshold that moves: only rows between its old and its new value change sides.
#
#     Σᵢ wᵢ·[v op sᵢ] = 0   for every v beyond all the sᵢ, if Σ wᵢ = 0
#
# because there all comparisons say the same. So for the changes (sᵢ, wᵢ) of a scalar, with its old and its new value,
# the rows that lie between them are enough; if it was or becomes NULL, or comes or goes, those on the side where the
# comparison holds are. The rows lie in the order of v (`segments`); the segment that follows compares.


_ROUNDING_SLACK = 2
"""Places by which rounding may be wrong."""

_MAX_ORDER_HASH = 2**64 - 1


def range_lookup(
    probe: pa.Table, value: str, arrangement: Arrangement, columns: Sequence[str], range_side: str, max_rows: int
) -> Iterator[pa.Table]:
    """Each change of the scalar (its `value`) with each row whose comparison it may change, as in `join.lookup`."""
    probe = probe.filter(pc.is_valid(probe[value]))  # compared with NULL nothing holds
    low, high = _order_hash_range(probe, range_side)
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    step = max(1, max_rows // max(1, int(probe.num_rows)))
    for run in arrangement.runs:
        start, stop = np.searchsorted(run.hashes, low, "left"), np.searchsorted(run.hashes, high, "right")
        for first in range(int(start), int(stop), step):
            rows = run.take(np.arange(first, min(first + step, int(stop))), columns)
            left = probe.select([*kept, WEIGHT]).take(pa.array(np.repeat(np.arange(probe.num_rows), rows.num_rows)))
            right = rows.take(pa.array(np.tile(np.arange(rows.num_rows), probe.num_rows)))
            weight = pc.multiply_checked(left[WEIGHT], right[WEIGHT])
            columned = [*(left[c] for c in kept), *(right[c] for c in columns), weight]
            yield pa.table(columned, names=[*kept, *columns, WEIGHT])


def _order_hash_range(probe: pa.Table, range_side: str) -> tuple[np.uint64, np.uint64]:
    if not probe.num_rows:
        return np.uint64(1), np.uint64(0)
    places = hashes_of(probe)
    low, high = int(places.min()) - _ROUNDING_SLACK, int(places.max()) + _ROUNDING_SLACK
    if int(weights_of(probe).sum()) != 0:
        low, high = (low, _MAX_ORDER_HASH) if range_side == "above" else (0, high)
    return np.uint64(low), np.uint64(high)


MATCH_FLAG_COLUMN = Column(plan.MATCH_FLAG, types.BOOLEAN, nullable=False)
"""Of a lookup in an optional relation: whether a row was met."""

_STEP_TEXTS = {"left": "or NULLs", "anti": "without a match"}
_MIN_SHOWN_FAN_OUT = 1.05
"""Rows a probe from which it is told how many."""
_TITLES = {"": "look up", "left": "outer look-up of", "anti": "rows without a match in"}


@dataclass(frozen=True)
class Lookup(Operator):
    """Probe rows times the rows of an arrangement with the same hash.

    `fresh`: the arrangement with this batch's changes, else as the last batch left it. `take` pairs an arrangement's
    column with the name that it gets here.
    """

    probe: tuple[Segment, ...]
    arrangement: str
    new_state: bool
    fetched_columns: tuple[tuple[str, Column], ...]
    is_on_load_path: bool = False
    """Whether this lookup also runs in a first load on Spark (the path of the join's last relation)."""
    range_side: str = field(default="", metadata={OMITTED_IF_EMPTY: True})
    """`above`, `below`: not rows of the same key but those whose comparison with the probe's value (on this side of it)
    differs from that with another probe's: see `thresholds`."""
    optional: str = ""
    """`left`, `anti`: rows without a match stay, with NULLs; or only they stay."""
    match: tuple[Expr, ...] = ()
    """Of an optional relation: the conditions, over the columns of both sides, under which a row has a match."""
    has_match_flag: bool = False
    """Whether a column `met` tells rows with a match from the others."""
    kind: ClassVar[str] = "lookup"
    has_canceling_output: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.probe,)

    @property
    def columns(self) -> tuple[Column, ...]:
        taken = () if self.optional == "anti" else tuple(c for _, c in self.fetched_columns)
        return (*self.probe[0].columns, *taken, *((MATCH_FLAG_COLUMN,) if self.has_match_flag else ()))

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
        taken = [name for name, _ in self.fetched_columns]
        names = [*(c.name for c in self.columns), WEIGHT]
        if not self.range_side:
            arrangement = arrangement.runs_overlapping(np.concatenate([hashes_of(table) for table in ports[0]]))
        each = sum(run.width(taken) for run in arrangement.runs) / len(arrangement.runs)
        among = self._build_row_filter(context)
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            probe = piece.combine_chunks()
            found = self._find_rows(
                probe, arrangement, taken, context.memory.piece_rows(row_width(probe) + each), among
            )
            yield from (rows.rename_columns(names) for rows in found)

    def _run_optional(self, context: ExecutionContext, ports: Ports, arrangement: Arrangement) -> Iterator[pa.Table]:
        taken, theirs = [name for name, _ in self.fetched_columns], [c for _, c in self.fetched_columns]
        mine = [c.name for c in self.probe[0].columns]
        names = [*(c.name for c in self.columns), WEIGHT]
        match, is_left = MatchCondition(self.match), self.optional == "left"
        if arrangement.runs:
            arrangement = arrangement.runs_overlapping(np.concatenate([hashes_of(table) for table in ports[0]]))
        each = sum(run.width(taken) for run in arrangement.runs) / max(1, len(arrangement.runs))
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            probe = piece.combine_chunks()
            net = np.zeros(probe.num_rows, np.int64)
            found = lookup_rows(
                with_row_numbers(probe), arrangement, taken, context.memory.piece_rows(row_width(probe) + each)
            )
            both = (rows.rename_columns([*mine, ROW_INDEX, *(c.name for c in theirs), WEIGHT]) for rows in found)
            for met in filter_matches(context.statements, match, both, net):
                if is_left:
                    yield self._with_match_flag(met, True).select(names)
            rest = probe.filter(pa.array(net == 0))
            if rest.num_rows:
                yield self._with_match_flag(with_null_columns(rest, theirs) if is_left else rest, False).select(names)

    def _with_match_flag(self, rows: pa.Table, is_match: bool) -> pa.Table:
        if not self.has_match_flag:
            return rows
        return rows.append_column(MATCH_FLAG_COLUMN.name, pa.array(np.full(rows.num_rows, is_match)))

    def _build_row_filter(self, context: ExecutionContext) -> RunFilter | None:
        """Rows that do not meet what is asked of them next, of what is taken alone, need not be taken."""
        theirs = {mine.name: name for name, mine in self.fetched_columns}
        asked = [rename_predicate(condition, theirs) for condition in context.row_filter(self)]
        conditions = [condition for condition in asked if condition is not None]
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
        where = f"#{context.numbers[self.arrangement]}"
        if (table := self._table_name(context)) is not None:
            where += f" {table}"
        take = ", ".join(f"{name} AS {c.name}" for name, c in self.fetched_columns)
        probe = ", ".join(self.probe[0].key or ())
        if self.range_side:
            return f"rows of {where}, {state} state, that a move of {probe} passes, taking {take or 'nothing'}"
        if self.optional == "anti":
            return f"anti lookup ({probe}) in {where}, {state} state: rows without a match"
        if self.optional:
            return f"outer lookup ({probe}) in {where}, {state} state, taking {take or 'nothing'}"
        return f"lookup ({probe}) in {where}, {state} state, taking {take or 'nothing'}"

    def describe_step(self, context: ExplainContext) -> str:
        table, probe = self._table_name(context), self.probe[0]
        key = ", ".join(context.describe_output(probe, k) for k in probe.key or ())
        how = f" {_STEP_TEXTS[self.optional]}" if self.optional else ""
        where = f"#{context.numbers[self.arrangement]}" + (f" {table}" if table is not None else "")
        rows = context.fan_out.get(self.arrangement)
        fan_out = f", about {rows:,.1f} rows a probe" if rows is not None and rows >= _MIN_SHOWN_FAN_OUT else ""
        return f"({key}) in {where}{how}, {'new' if self.new_state else 'old'} state{fan_out}"

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
        taken = next(((theirs, mine) for theirs, mine in self.fetched_columns if mine.name == column_name), None)
        if taken is None:
            return super().lineage(column_name)
        return self.arrangement, column(taken[0], taken[1].type)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        taken = {
            mine.name: expr_text(self.arrangement, column(theirs, mine.type)) for theirs, mine in self.fetched_columns
        }
        return {**super().column_texts(expr_text), **taken}

    def _table_name(self, context: ExplainContext) -> str | None:
        """The name of the base table that it looks in, if it is one."""
        table = context.dataflow.operators[self.arrangement].arranged_table
        return None if table is None else context.names[table]


def lookup_rows(
    probe: pa.Table,
    arrangement: Arrangement,
    columns: Sequence[str],
    max_rows: int,
    row_filter: RunFilter | None = None,
) -> Iterator[pa.Table]:
    """Each probe row with each row of the same hash: the probe's columns, the arrangement's `columns`, and `¤w`.

    At most so many rows at a time: what follows is linear, so it does with each piece what it would do with the sum.
    """
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    for asked, rows in arrangement.probe_pieces(hashes_of(probe), columns, max_rows, row_filter):
        left = probe.select([*kept, WEIGHT]).take(pa.array(asked))
        weight = pc.multiply_checked(left.column(WEIGHT), rows.column(WEIGHT))
        yield pa.table(
            [*(left.column(c) for c in kept), *(rows.column(c) for c in columns), weight],
            names=[*kept, *columns, WEIGHT],
        )
