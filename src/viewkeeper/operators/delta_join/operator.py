"""Delta join: the join paths of all views from the changes of one table, followed together.

    delta ──unique──▶ + row id in orders ──unique──▶ + row id in customer ──┬─▶ exit to q3's aggregate
      │                                                                     └─▶ exit to q10's aggregate
      └──expand──▶ new partial rows: (row id in delta, row id in lineitem) ──▶ …

A partial row (`partial_rows`) is a tuple of row ids: in the delta, in orders, in customer, … A lookup by a unique key
adds a row id to the same partial rows, so it runs once for all views that need it, in any order; any other lookup makes
new partial rows. For each exit, a partial row has a bit: whether the exit still needs it. A condition clears the bits
of rows that do not meet it; the conditions of all views that can be evaluated at one point are evaluated together, and
a lookup runs for the rows that an exit needs. Columns are materialized at the exit, and only those that are used there.

    −1 row and +1 row of one key with the same values in all columns that an exit uses  ⇒  the exit needs neither

The output at an exit equals that of the lookups which the delta join retires, except for rows that cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.delta import identical_rows_at
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import concat_deltas
from viewkeeper.operators.delta_join.partial_rows import PartialRows
from viewkeeper.operators.delta_join.plan import (
    DELTA,
    Exit,
    JoinPath,
    all_steps,
    mask_word,
    mask_word_count,
    mask_word_indexes,
)
from viewkeeper.operators.delta_join.semijoin import CursorLookup, SemijoinReduction
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinModes, SemijoinNode, build_semijoin_nodes
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.cursor import LookupCursor
from viewkeeper.state.hash_index import RowIds, radix_argsort
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Run, weights_of

_EMPTY_ROWS = pa.table({WEIGHT: pa.array([], pa.int64())})
_PARTIAL_ROW_BYTES = 64
"""Bytes of a partial row: a few row ids, the weight, the exit mask."""


@dataclass(frozen=True)
class ExitSegment(Segment):
    """The segment after the last lookup of a path, without the conditions that were evaluated on the path."""

    exit: Exit = field(default=Exit(-1, "", ()))


@dataclass(frozen=True)
class DeltaJoin(Operator):
    """All paths from the changes of one table.

    `cancellation_groups`: groups of exits, as bits, with the columns of the delta that they use beside the conditions
    on the delta alone.
    """

    delta: Segment
    key: tuple[str, ...]
    path: JoinPath
    cancellation_groups: tuple[tuple[tuple[str, ...], int], ...]
    exit_mask: int
    columns_by_arrangement: tuple[tuple[str, frozenset[str]], ...]
    new_state_arrangements: tuple[str, ...]
    lookup_ids: tuple[str, ...]
    semijoin_modes: SemijoinModes
    kind: ClassVar[str] = "delta_join"
    needs_exchange: ClassVar[bool] = False
    retires_operators: ClassVar[bool] = True

    @cached_property
    def id(self) -> str:
        return f"routes-{self.delta.source}"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return ((self.delta,),)

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect("Routes have columns at their exits only.")

    @property
    def new_state_lookups(self) -> tuple[str, ...]:
        return self.new_state_arrangements

    @property
    def lookup_columns(self) -> Mapping[str, frozenset[str]]:
        return dict(self.columns_by_arrangement)

    @property
    def probed_arrangements(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns_by_arrangement)

    @property
    def retired_operators(self) -> tuple[str, ...]:
        return self.lookup_ids

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[ExitRows]:
        if not ports[0]:
            return
        cursors: dict[tuple[str, bool], LookupCursor] = {}

        def cursor_of(arrangement: str, new_state: bool) -> LookupCursor:
            if (arrangement, new_state) not in cursors:
                slot = f"{arrangement}/0"
                cursors[arrangement, new_state] = LookupCursor(
                    (context.new(slot) if new_state else context.old(slot)).runs
                )
            return cursors[arrangement, new_state]

        semijoin = SemijoinReduction(context.statements, self.semijoin_nodes, self.semijoin_modes, self.id, cursor_of)
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            yield from follow_paths(
                semijoin, self, piece.combine_chunks(), cursor_of, context.memory.piece_rows(_PARTIAL_ROW_BYTES)
            )
        for step in all_steps(self.path):
            for lookup in step.lookup_ids if step.relation in semijoin.skipped else ():
                context.skipped[lookup] = semijoin.skipped[step.relation]

    @cached_property
    def semijoin_nodes(self) -> Mapping[int, SemijoinNode]:
        return build_semijoin_nodes(self.path)


def select_delta_joins(operators: Iterable[Operator]) -> Iterator[DeltaJoin]:
    """Yield the delta joins among operators."""
    return (operator for operator in operators if isinstance(operator, DeltaJoin))


class ExitRows:
    """Partial rows that have arrived at exits."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_source: Counter[str] = Counter()
        """The number of rows by the retired lookup whose output they replace."""
        self._rows_by_exit: dict[int, list[tuple[PartialRows, RowIds]]] = {}

    def add(self, exit_: Exit, rows: PartialRows, row_positions: RowIds) -> None:
        self._rows_by_exit.setdefault(exit_.number, []).append((rows, row_positions))
        self.num_rows += len(row_positions)
        self.by_source[exit_.source] += len(row_positions)

    def table_at(self, segment: Segment | None) -> pa.Table:
        """Return the rows at the exit before this segment, materialized."""
        if not isinstance(segment, ExitSegment):
            raise Defect("Underway leave their routes by exits only.")
        selections = self._rows_by_exit.get(segment.exit.number, ())
        if not selections:
            return _EMPTY_ROWS
        tables = [rows.materialize(segment.exit.columns, positions) for rows, positions in selections]
        return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def rows_by_lookup(output: pa.Table | ExitRows) -> Mapping[str, int]:
    """Return how many rows of an output replace those of retired lookups, by lookup."""
    return output.by_source if isinstance(output, ExitRows) else {}


def follow_paths(
    semijoin: SemijoinReduction, operator: DeltaJoin, delta: pa.Table, cursor_of: CursorLookup, max_rows: int
) -> Iterator[ExitRows]:
    """Yield the rows that arrive at the exits, about `max_rows` at a time."""
    count = delta.num_rows
    exit_masks = [np.full(count, mask_word(operator.exit_mask, w)) for w in range(mask_word_count(operator.exit_mask))]
    cursors = {DELTA: LookupCursor([Run(delta)])}
    rows = PartialRows(semijoin, cursors, {DELTA: np.arange(count)}, weights_of(delta), exit_masks)
    for path_filter in operator.path.filters:
        rows.filter(path_filter, operator.exit_mask)
    _cancel_unchanged(semijoin.statements, operator, delta, rows)
    found = ExitRows()
    for exit_, partial_rows, positions in _follow_path(operator.path, rows, cursor_of, max_rows):
        found.add(exit_, partial_rows, positions)
        if found.num_rows > max_rows:
            yield found
            found = ExitRows()
    if found.num_rows:
        yield found


def _follow_path(
    path: JoinPath, rows: PartialRows, cursor_of: CursorLookup, max_rows: int
) -> Iterator[tuple[Exit, PartialRows, RowIds]]:
    for step in path.steps:
        rows.extend_unique(step, cursor_of(step.arrangement, step.new_state))
    for exit_ in path.exits:
        if len(positions := rows.rows_with_exits(1 << exit_.number)):
            yield exit_, rows, positions
    for step, branch in path.branches:
        for expanded in rows.expand(step, cursor_of(step.arrangement, step.new_state), max_rows):
            for path_filter in branch.filters:
                expanded.filter(path_filter, step.exit_mask)
            yield from _follow_path(branch, expanded, cursor_of, max_rows)


def _cancel_unchanged(statements: PreparedStatements, operator: DeltaJoin, delta: pa.Table, rows: PartialRows) -> None:
    """Clear an exit's bits for pairs of −1 and +1 rows that are equal in all columns that the exit uses."""
    order = radix_argsort(hashes := hash_keys(statements, delta, operator.key))
    pair_starts = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    left, right = order[pair_starts], order[pair_starts + 1]
    opposite = rows.weights[left] == -rows.weights[right]
    left, right = left[opposite], right[opposite]
    if not len(left):
        return
    equal_by_column: dict[str, npt.NDArray[np.bool_]] = {}
    for columns, exits in operator.cancellation_groups:
        is_same = np.ones(len(left), np.bool_)
        for name in dict.fromkeys([*columns, *operator.key]):  # the key last: it is equal except for hash collisions
            if name not in equal_by_column:
                equal_by_column[name] = identical_rows_at(delta.select([name]), left, right)
            is_same &= equal_by_column[name]
            if not is_same.any():
                break
        if not is_same.any():
            continue
        first, second = left[is_same], right[is_same]
        for word in mask_word_indexes(exits):
            bits = rows.exit_masks[word]
            both = bits[first] & bits[second] & mask_word(exits, word)
            bits[first] &= ~both
            bits[second] &= ~both
