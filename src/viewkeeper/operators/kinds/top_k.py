"""TopK: the first rows of all rows, from a buffer that has a few more rows than are shown.

The order is total (it ends with every column), so the first rows are a function of the multiset. The buffer has the
first rows of the input: every row that is not in it comes after its last one. Rows of a delta after the last one do not
change the output and are only added to the state; the others are added to the buffer. So a batch costs its own size and
the buffer's. Only when deletions have left fewer rows in the buffer than must be shown, and the input has more, is the
buffer filled again from all rows; the margin makes that rare.

Sorting needs no statement where Arrow orders values as DuckDB does: integers, dates, times, decimals and strings (by
their bytes). Arrow sorts a thousand rows in a quarter of a statement's time. Floats (NaN, the two zeros), other types,
and orders by expressions are sorted by a statement.
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

_MAX_ROWS = 1 << 15
_ORDER_TERM = r'"(\w+)" (ASC|DESC) NULLS (FIRST|LAST)'
_ORDER_CLAUSE = re.compile(f"{_ORDER_TERM}(?:, {_ORDER_TERM})*")
_DIRECTIONS = {"ASC": "ascending", "DESC": "descending"}
_NULL_PLACEMENTS = {"FIRST": "at_start", "LAST": "at_end"}

SortKey = tuple[str, str, str]


def sorted_row_ids(rows: pa.Table, order: str) -> RowIds | None:
    """Return the row ids in the order of an ORDER BY clause; equal rows keep their order. None if a statement is
    needed."""
    if not can_sort(rows, order):
        return None
    keys = _sort_keys(order)
    row_ids: RowIds = pc.sort_indices(rows, sort_keys=list(keys)).to_numpy().astype(np.int64)
    return row_ids


def can_sort(rows: pa.Table, order: str) -> bool:
    """Return whether these rows, and any subset of them, can be sorted without a statement."""
    keys = _sort_keys(order)
    if not keys or rows.num_rows > _MAX_ROWS:
        return False
    columns = [name for name in rows.column_names if name not in (HASH, WEIGHT)]
    return {name for name, _, _ in keys} <= {*columns} and all(_is_sortable(rows.schema.field(n).type) for n in columns)


@lru_cache(maxsize=1024)
def _sort_keys(order: str) -> tuple[SortKey, ...]:
    """Return each column once with its direction; empty if the order has anything but columns."""
    if _ORDER_CLAUSE.fullmatch(order) is None:
        return ()
    sort_keys: dict[str, SortKey] = {}
    for name, direction, nulls in re.findall(_ORDER_TERM, order):
        sort_keys.setdefault(name, (name, _DIRECTIONS[direction], _NULL_PLACEMENTS[nulls]))
    return tuple(sort_keys.values())


def _is_sortable(arrow_type: pa.DataType) -> bool:
    type_checks = (
        pa.types.is_integer,
        pa.types.is_date,
        pa.types.is_timestamp,
        pa.types.is_decimal128,
        pa.types.is_string,
    )
    return any(check(arrow_type) for check in type_checks)


BUFFER_MARGIN = 1_000
"""Rows that a full buffer has beyond those that are shown."""
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
        """Run one step over the whole input; the order is global, so there are no ranges."""
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
    """Return the output's delta; what to add to the state, the input's delta and the buffer's; and the buffer in
    order."""
    all_rows, buffer_state = states
    delta = consolidate(statements, delta)
    names = delta.column_names
    old = _read_buffer(statements, operator, buffer_state).select(names) if buffer_state.runs else delta.slice(0, 0)
    row_count = _count_rows(all_rows)
    is_complete = int(weights_of(old).sum()) == row_count
    new, buffer_delta = _merge_into_buffer(statements, operator, old, delta, is_complete)
    weights = weights_of(new)
    if len(weights) and weights.min() <= 0:
        raise Contradiction("A row of a top-k occurs fewer than no times.")
    needed = operator.count + operator.offset
    if weights.sum() < needed and weights.sum() < row_count + weights_of(delta).sum():
        rows = pa.concat_tables([all_rows.rows().select(names), delta]) if all_rows.runs else delta
        refill_sql = f"SELECT * FROM input ORDER BY {operator.order} LIMIT {needed + BUFFER_MARGIN}"
        new, buffer_delta = statements.run(refill_sql, input=consolidate(statements, rows.combine_chunks())), None
    elif new.num_rows > 2 * (needed + BUFFER_MARGIN):
        new, buffer_delta = new.slice(0, needed + BUFFER_MARGIN), None
    if buffer_delta is not None and not buffer_delta.num_rows:
        return buffer_delta.drop_columns([HASH]), [delta, buffer_delta], new
    output = _subtract(statements, *(_apply_limit(operator, rows) for rows in (new, old)))
    return (
        output.drop_columns([HASH]),
        [delta, _subtract(statements, new, old) if buffer_delta is None else buffer_delta],
        new,
    )


def _read_buffer(statements: PreparedStatements, operator: TopK, buffer_state: Arrangement) -> pa.Table:
    """Return the buffer, in order."""
    buffer = buffer_state.cached_result(_BUFFER_CACHE_KEY)
    if buffer is None:
        buffer = _sort_rows(statements, operator, buffer_state.rows())
        buffer_state.cache_result(_BUFFER_CACHE_KEY, buffer)
    return buffer


def _sort_rows(statements: PreparedStatements, operator: TopK, rows: pa.Table) -> pa.Table:
    """Return the rows, consolidated and in order."""
    if can_sort(rows, operator.order):
        consolidated = consolidate(statements, rows)
        return consolidated.take(pa.array(sorted_row_ids(consolidated, operator.order)))
    return statements.run(consolidation_sql(rows.schema, f" ORDER BY {operator.order}"), delta=rows)


def _merge_into_buffer(
    statements: PreparedStatements, operator: TopK, buffer: pa.Table, delta: pa.Table, is_complete: bool
) -> tuple[pa.Table, pa.Table | None]:
    """Return the buffer plus the delta, in order, without the delta's rows after the buffer's last one; and the delta's
    remaining rows, or None if they are not known.

    `is_complete`: the buffer has all rows of the input, so no row of the delta is left out.
    """
    names = delta.column_names
    all_rows = concat_deltas([delta, buffer.select(names)]).combine_chunks()
    row_ids = sorted_row_ids(all_rows, operator.order)
    if row_ids is None:
        return statements.run(_merge_sql(operator, names, is_complete), buffer=buffer, delta=delta), None
    # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
    is_old = row_ids >= delta.num_rows
    if not is_complete:
        row_ids = row_ids[: int(np.flatnonzero(is_old)[-1]) + 1 if is_old.any() else 0]
    delta_rows = np.sort(row_ids[row_ids < delta.num_rows])
    if not len(delta_rows):
        return buffer, delta.slice(0, 0)
    # Neither side has a row twice, and of two equal rows the delta's is right before the buffer's.
    pairs = np.flatnonzero((row_ids[:-1] < delta.num_rows) & (row_ids[1:] >= delta.num_rows))
    duplicates = 1 + pairs[identical_rows_at(all_rows, row_ids[pairs + 1], row_ids[pairs], ignored_column=WEIGHT)]
    start = np.delete(np.arange(len(row_ids)), duplicates)
    weights = np.add.reduceat(weights_of(all_rows)[row_ids], start)
    nonzero = np.flatnonzero(weights)
    new = all_rows.take(pa.array(row_ids[start[nonzero]])).set_column(
        names.index(WEIGHT), WEIGHT, pa.array(weights[nonzero])
    )
    return new, delta if len(delta_rows) == delta.num_rows else delta.take(pa.array(delta_rows))


def _merge_sql(operator: TopK, names: Sequence[str], is_complete: bool) -> str:
    """Return the same as a statement."""
    columns = ", ".join(quoted(n) for n in names if n != WEIGHT)
    both = f"SELECT {columns}, ¤w, 0 AS new FROM buffer UNION ALL SELECT {columns}, ¤w, 1 AS new FROM delta"
    if is_complete:
        merged = f"({both})"
    else:
        # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
        numbered = f"SELECT *, row_number() OVER (ORDER BY {operator.order}, new DESC) AS place FROM ({both})"
        last = "max(place) FILTER (new = 0) OVER ()"
        merged = f"(SELECT * FROM (SELECT *, {last} AS last FROM ({numbered})) WHERE place <= last)"
    selected = ", ".join("sum(¤w)::BIGINT AS ¤w" if n == WEIGHT else quoted(n) for n in names)
    return f"SELECT {selected} FROM {merged} GROUP BY {columns} HAVING sum(¤w) <> 0 ORDER BY {operator.order}"


def _apply_limit(operator: TopK, rows: pa.Table) -> pa.Table:
    """Return the ordered rows within LIMIT and OFFSET; a row counts as often as its weight."""
    stop = operator.offset + operator.count
    rows = rows.slice(0, stop)  # each row has a weight of at least one
    ends = np.cumsum(weights_of(rows))
    starts = ends - weights_of(rows)
    weights = np.clip(np.minimum(ends, stop) - np.maximum(starts, operator.offset), 0, None)
    limited = rows.set_column(rows.column_names.index(WEIGHT), WEIGHT, pa.array(weights, pa.int64()))
    return limited.filter(pa.array(weights > 0))


def _subtract(statements: PreparedStatements, new: pa.Table, old: pa.Table) -> pa.Table:
    is_plain = not any(pa.types.is_nested(kind) for kind in new.schema.types)
    if is_plain and new.num_rows == old.num_rows and identical_rows(new, old.select(new.column_names)).all():
        return new.slice(0, 0)  # both are in the same order
    weight_index = old.column_names.index(WEIGHT)
    negated = old.set_column(weight_index, WEIGHT, pa.array(-weights_of(old)))
    return consolidate(statements, pa.concat_tables([new, negated.select(new.column_names)]).combine_chunks())


def _count_rows(arrangement: Arrangement) -> int:
    """Return the number of rows of the multiset, with repetitions."""
    return sum(map(_count_run_rows, arrangement.runs))


def _count_run_rows(run: Run) -> int:
    count = run.cache.get(_COUNT_CACHE_KEY)
    if count is None:
        count = int(weights_of(run.rows).sum()) if WEIGHT in run.rows.column_names else run.num_rows
        run.cache[_COUNT_CACHE_KEY] = count
    return int(count)
