"""TopK: the first rows of all rows, from a buffer that knows a little more than it shows.

The order is total (it ends with every column), so the first rows are a function of the multiset. The buffer holds the
first rows of the input: every row that is not in it comes after its last one. A delta's rows after the last one change
nothing that is shown and only go to the state; the others are added to the buffer. So a batch costs its own size and
the buffer's. Only when retractions have emptied the buffer below what must be shown, and the input has more, is the
buffer filled again from all rows; the margin makes that rare.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction
from viewkeeper.model.delta import identical_rows, identical_rows_at
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import combine_deltas, concat_deltas
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate, consolidation_sql
from viewkeeper.state.hash_index import RowIds
from viewkeeper.state.run import Arrangement, Run, arrange, weights_of

# Rows in order, without a statement: Arrow sorts a thousand rows in a quarter of the time that one takes.
#
# It puts integers, dates, times, decimals and strings (by their bytes) in the order in which DuckDB has them. Floats
# (NaN, the two zeros), other types, and orders by more than columns are left to a statement.


_MAX_ROWS = 1 << 15
_ORDER_TERM = r'"(\w+)" (ASC|DESC) NULLS (FIRST|LAST)'
_ORDER_CLAUSE = re.compile(f"{_ORDER_TERM}(?:, {_ORDER_TERM})*")
_DIRECTIONS = {"ASC": "ascending", "DESC": "descending"}
_NULL_PLACEMENTS = {"FIRST": "at_start", "LAST": "at_end"}

SortKey = tuple[str, str, str]


def sorted_row_ids(rows: pa.Table, order: str) -> RowIds | None:
    """Where the rows lie that an ORDER BY clause names first, second, …; of equal ones those that are first now. None
    where that takes a statement."""
    if not can_sort(rows, order):
        return None
    keys = _sort_keys(order)
    found: RowIds = pc.sort_indices(rows, sort_keys=list(keys)).to_numpy().astype(np.int64)
    return found


def can_sort(rows: pa.Table, order: str) -> bool:
    """Whether that takes no statement, of these rows and of fewer."""
    keys = _sort_keys(order)
    if not keys or rows.num_rows > _MAX_ROWS:
        return False
    columns = [name for name in rows.column_names if name not in (HASH, WEIGHT)]
    return {name for name, _, _ in keys} <= {*columns} and all(_is_sortable(rows.schema.field(n).type) for n in columns)


@lru_cache(maxsize=1024)
def _sort_keys(order: str) -> tuple[SortKey, ...]:
    """Each column once, with the way it goes; none if there is anything but columns."""
    if _ORDER_CLAUSE.fullmatch(order) is None:
        return ()
    found: dict[str, SortKey] = {}
    for name, way, nulls in re.findall(_ORDER_TERM, order):
        found.setdefault(name, (name, _DIRECTIONS[way], _NULL_PLACEMENTS[nulls]))
    return tuple(found.values())


def _is_sortable(arrow_type: pa.DataType) -> bool:
    known = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal128, pa.types.is_string)
    return any(is_known(arrow_type) for is_known in known)


BUFFER_MARGIN = 1_000
"""Rows that a full buffer holds beyond those that are shown."""
_BUFFER_CACHE_KEY, _COUNT_CACHE_KEY = "in order", "copies"


@dataclass(frozen=True)
class TopK(Operator):
    """ORDER BY … LIMIT over all rows: the first `count` after `offset`, in a total order (an ORDER BY clause).

    State: all rows, and the buffer.
    """

    source: tuple[Segment, ...]
    order: str
    count: int
    offset: int
    kind: ClassVar[str] = "top_k"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def slot_count(self) -> int:
        return 2

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        """The first rows of all: nothing to divide."""
        if ports[0]:
            states = context.state(self)
            output, added, buffer = run_top_k_step(context.statements, self, states, combine_deltas(ports[0]))
            runs = [arrange(delta) for delta in added]
            if runs[1].num_rows:
                states[1].with_runs(runs[1]).cache_result(_BUFFER_CACHE_KEY, buffer)
            context.emit_runs(self, runs)
            yield output

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        names = [*(c.name for c in self.columns), WEIGHT]
        rows = consolidate(statements, states[1].rows([*names[:-1]]))
        return _apply_limit(self, statements.run(f"FROM input ORDER BY {self.order}", input=rows)).select(names)

    def describe(self, context: ExplainContext) -> str:
        offset = f" after {self.offset}" if self.offset else ""
        return f"top {self.count}{offset} by {self.order}"

    def reason(self, context: ExplainContext) -> str:
        return "keeps all rows: when one of the first goes, the next takes its place; a margin answers most batches"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        return OperatorDescription(f"top {self.count}", (f"after {self.offset}",) if self.offset else ())


def run_top_k_step(
    statements: PreparedStatements, operator: TopK, states: Sequence[Arrangement], delta: pa.Table
) -> tuple[pa.Table, list[pa.Table], pa.Table]:
    """The output's delta; what to add to the state: the input's delta, then the buffer's; and the buffer in order."""
    everything, held = states
    delta = consolidate(statements, delta)
    names = delta.column_names
    old = _read_buffer(statements, operator, held).select(names) if held.runs else delta.slice(0, 0)
    total = _count_rows(everything)
    complete = int(weights_of(old).sum()) == total
    new, came = _merge_into_buffer(statements, operator, old, delta, complete)
    weights = weights_of(new)
    if len(weights) and weights.min() <= 0:
        raise Contradiction("A row of a top-k occurs fewer than no times.")
    needed = operator.count + operator.offset
    if weights.sum() < needed and weights.sum() < total + weights_of(delta).sum():
        rows = pa.concat_tables([everything.rows().select(names), delta]) if everything.runs else delta
        filled = f"SELECT * FROM input ORDER BY {operator.order} LIMIT {needed + BUFFER_MARGIN}"
        new, came = statements.run(filled, input=consolidate(statements, rows.combine_chunks())), None
    elif new.num_rows > 2 * (needed + BUFFER_MARGIN):
        new, came = new.slice(0, needed + BUFFER_MARGIN), None
    if came is not None and not came.num_rows:
        return came.drop_columns([HASH]), [delta, came], new
    output = _subtract(statements, *(_apply_limit(operator, rows) for rows in (new, old)))
    return output.drop_columns([HASH]), [delta, _subtract(statements, new, old) if came is None else came], new


def _read_buffer(statements: PreparedStatements, operator: TopK, buffer_state: Arrangement) -> pa.Table:
    """The buffer, in order."""
    found = buffer_state.cached_result(_BUFFER_CACHE_KEY)
    if found is None:
        found = _sort_rows(statements, operator, buffer_state.rows())
        buffer_state.cache_result(_BUFFER_CACHE_KEY, found)
    return found


def _sort_rows(statements: PreparedStatements, operator: TopK, rows: pa.Table) -> pa.Table:
    """The rows, consolidated, in order."""
    if can_sort(rows, operator.order):
        whole = consolidate(statements, rows)
        return whole.take(pa.array(sorted_row_ids(whole, operator.order)))
    return statements.run(consolidation_sql(rows.schema, f" ORDER BY {operator.order}"), delta=rows)


def _merge_into_buffer(
    statements: PreparedStatements, operator: TopK, buffer: pa.Table, delta: pa.Table, is_complete: bool
) -> tuple[pa.Table, pa.Table | None]:
    """The buffer plus the delta, in order, without the delta's rows that come after the buffer's last one; and those of
    the delta that do not, if that is known."""
    names = delta.column_names
    both = concat_deltas([delta, buffer.select(names)]).combine_chunks()
    places = sorted_row_ids(both, operator.order)
    if places is None:
        return statements.run(_merge_sql(operator, names, is_complete), buffer=buffer, delta=delta), None
    # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
    is_old = places >= delta.num_rows
    if not is_complete:
        places = places[: int(np.flatnonzero(is_old)[-1]) + 1 if is_old.any() else 0]
    came = np.sort(places[places < delta.num_rows])
    if not len(came):
        return buffer, delta.slice(0, 0)
    # Neither side has a row twice, and of equal ones the delta's stands right before the buffer's.
    pairs = np.flatnonzero((places[:-1] < delta.num_rows) & (places[1:] >= delta.num_rows))
    again = 1 + pairs[identical_rows_at(both, places[pairs + 1], places[pairs], ignored_column=WEIGHT)]
    start = np.delete(np.arange(len(places)), again)
    summed = np.add.reduceat(weights_of(both)[places], start)
    left = np.flatnonzero(summed)
    new = both.take(pa.array(places[start[left]])).set_column(names.index(WEIGHT), WEIGHT, pa.array(summed[left]))
    return new, delta if len(came) == delta.num_rows else delta.take(pa.array(came))


def _merge_sql(operator: TopK, names: Sequence[str], is_complete: bool) -> str:
    """The same as a statement."""
    columns = ", ".join(quoted(n) for n in names if n != WEIGHT)
    both = f"SELECT {columns}, ¤w, 0 AS new FROM buffer UNION ALL SELECT {columns}, ¤w, 1 AS new FROM delta"
    if is_complete:
        kept = f"({both})"
    else:
        # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
        placed = f"SELECT *, row_number() OVER (ORDER BY {operator.order}, new DESC) AS place FROM ({both})"
        last = "max(place) FILTER (new = 0) OVER ()"
        kept = f"(SELECT * FROM (SELECT *, {last} AS last FROM ({placed})) WHERE place <= last)"
    shown = ", ".join("sum(¤w)::BIGINT AS ¤w" if n == WEIGHT else quoted(n) for n in names)
    return f"SELECT {shown} FROM {kept} GROUP BY {columns} HAVING sum(¤w) <> 0 ORDER BY {operator.order}"


def _apply_limit(operator: TopK, rows: pa.Table) -> pa.Table:
    """What LIMIT and OFFSET leave of rows in order, a row counting as often as it occurs."""
    last = operator.offset + operator.count
    rows = rows.slice(0, last)  # each occurs at least once
    ends = np.cumsum(weights_of(rows))
    starts = ends - weights_of(rows)
    weights = np.clip(np.minimum(ends, last) - np.maximum(starts, operator.offset), 0, None)
    shown = rows.set_column(rows.column_names.index(WEIGHT), WEIGHT, pa.array(weights, pa.int64()))
    return shown.filter(pa.array(weights > 0))


def _subtract(statements: PreparedStatements, new: pa.Table, old: pa.Table) -> pa.Table:
    is_plain = not any(pa.types.is_nested(kind) for kind in new.schema.types)
    if is_plain and new.num_rows == old.num_rows and identical_rows(new, old.select(new.column_names)).all():
        return new.slice(0, 0)  # both are in order
    place = old.column_names.index(WEIGHT)
    gone = old.set_column(place, WEIGHT, pa.array(-weights_of(old)))
    return consolidate(statements, pa.concat_tables([new, gone.select(new.column_names)]).combine_chunks())


def _count_rows(arrangement: Arrangement) -> int:
    """How many rows the multiset has, repetitions counted."""
    return sum(map(_count_run_rows, arrangement.runs))


def _count_run_rows(run: Run) -> int:
    found = run.cache.get(_COUNT_CACHE_KEY)
    if found is None:
        found = int(weights_of(run.rows).sum()) if WEIGHT in run.rows.column_names else run.num_rows
        run.cache[_COUNT_CACHE_KEY] = found
    return int(found)
