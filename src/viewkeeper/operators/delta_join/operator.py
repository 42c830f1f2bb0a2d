"""Routes: the lookup paths of all views from the changes of one table, followed together.

    delta ──find──▶ +place in orders ──find──▶ +place in customer ──┬─▶ exit to q3's aggregate
      │                                                             └─▶ exit to q10's aggregate
      └──matches──▶ new rows: (delta's place, place in lineitem) ──▶ …

A row on its way (`underway`) is a tuple of places: its place in the delta, in orders, in customer, … A lookup by a
unique key adds a place to the same rows, so it is made once, whoever wants it and in whatever order; any other lookup
makes new rows. For each way out (an *exit*) a row has a bit: whether the exit still wants it. A condition takes the bit
from the rows that do not meet it, one statement for all conditions of all views that can be judged at this point, and a
lookup is made for the rows that somebody wants. Columns are taken at the exit, and only those that are used there.

    −1 row and +1 row of one key, alike in all that an exit uses  ⇒  the exit wants neither

What an exit gives is what the lookups that it stands for would have given, but for rows that cancel.
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
"""Bytes of a row on its way: a few places, the weight, the bits."""


@dataclass(frozen=True)
class ExitSegment(Segment):
    """The segment after the last lookup of a path, without the conditions that were judged on the way."""

    exit: Exit = field(default=Exit(-1, "", ()))


@dataclass(frozen=True)
class DeltaJoin(Operator):
    """All paths from the changes of one table. `alike`: groups of exits with the columns of the delta that they use
    beside the conditions on it alone."""

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
        lying: dict[tuple[str, bool], LookupCursor] = {}

        def look(arrangement: str, fresh: bool) -> LookupCursor:
            if (arrangement, fresh) not in lying:
                slot = f"{arrangement}/0"
                lying[arrangement, fresh] = LookupCursor((context.new(slot) if fresh else context.old(slot)).runs)
            return lying[arrangement, fresh]

        ahead = SemijoinReduction(context.statements, self.semijoin_nodes, self.semijoin_modes, self.id, look)
        for piece in context.memory.pieces(concat_deltas(ports[0])):
            yield from follow_paths(
                ahead, self, piece.combine_chunks(), look, context.memory.piece_rows(_PARTIAL_ROW_BYTES)
            )
        for step in all_steps(self.path):
            for lookup in step.lookup_ids if step.relation in ahead.skipped else ():
                context.skipped[lookup] = ahead.skipped[step.relation]

    @cached_property
    def semijoin_nodes(self) -> Mapping[int, SemijoinNode]:
        return build_semijoin_nodes(self.path)


def select_delta_joins(operators: Iterable[Operator]) -> Iterator[DeltaJoin]:
    """Those of a flow's form, for who tells what they share."""
    return (operator for operator in operators if isinstance(operator, DeltaJoin))


class ExitRows:
    """Underway that have arrived at exits."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_source: Counter[str] = Counter()
        """Underway by the lookup that would have given them."""
        self._rows_by_exit: dict[int, list[tuple[PartialRows, RowIds]]] = {}

    def add(self, exit_: Exit, rows: PartialRows, row_positions: RowIds) -> None:
        self._rows_by_exit.setdefault(exit_.number, []).append((rows, row_positions))
        self.num_rows += len(row_positions)
        self.by_source[exit_.source] += len(row_positions)

    def table_at(self, segment: Segment | None) -> pa.Table:
        """What arrived at the exit before this segment."""
        if not isinstance(segment, ExitSegment):
            raise Defect("Underway leave their routes by exits only.")
        parts = self._rows_by_exit.get(segment.exit.number, ())
        if not parts:
            return _EMPTY_ROWS
        tables = [rows.materialize(segment.exit.columns, some) for rows, some in parts]
        return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def rows_by_lookup(output: pa.Table | ExitRows) -> Mapping[str, int]:
    """How many rows an output has in the place of others', by those."""
    return output.by_source if isinstance(output, ExitRows) else {}


def follow_paths(
    semijoin: SemijoinReduction, operator: DeltaJoin, delta: pa.Table, cursor_of: CursorLookup, max_rows: int
) -> Iterator[ExitRows]:
    """The rows that arrive at the exits, about so many at a time."""
    count = delta.num_rows
    everyone = [np.full(count, mask_word(operator.exit_mask, w)) for w in range(mask_word_count(operator.exit_mask))]
    lying = {DELTA: LookupCursor([Run(delta)])}
    rows = PartialRows(semijoin, lying, {DELTA: np.arange(count)}, weights_of(delta), everyone)
    for check in operator.path.filters:
        rows.filter(check, operator.exit_mask)
    _cancel_unchanged(semijoin.statements, operator, delta, rows)
    found = ExitRows()
    for exit_, mine, some in _follow_path(operator.path, rows, cursor_of, max_rows):
        found.add(exit_, mine, some)
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
        if len(some := rows.rows_with_exits(1 << exit_.number)):
            yield exit_, rows, some
    for step, after in path.branches:
        for more in rows.expand(step, cursor_of(step.arrangement, step.new_state), max_rows):
            for check in after.filters:
                more.filter(check, step.exit_mask)
            yield from _follow_path(after, more, cursor_of, max_rows)


def _cancel_unchanged(statements: PreparedStatements, operator: DeltaJoin, delta: pa.Table, rows: PartialRows) -> None:
    """A row that was changed only where an exit does not look goes neither way through it."""
    order = radix_argsort(codes := hash_keys(statements, delta, operator.key))
    together = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
    one, other = order[together], order[together + 1]
    opposite = rows.weights[one] == -rows.weights[other]
    one, other = one[opposite], other[opposite]
    if not len(one):
        return
    same: dict[str, npt.NDArray[np.bool_]] = {}
    for columns, exits in operator.cancellation_groups:
        is_same = np.ones(len(one), np.bool_)
        for name in dict.fromkeys([*columns, *operator.key]):  # the key at last: it is the same but for collisions
            if name not in same:
                same[name] = identical_rows_at(delta.select([name]), one, other)
            is_same &= same[name]
            if not is_same.any():
                break
        if not is_same.any():
            continue
        first, second = one[is_same], other[is_same]
        for word in mask_word_indexes(exits):
            bits = rows.exit_masks[word]
            both = bits[first] & bits[second] & mask_word(exits, word)
            bits[first] &= ~both
            bits[second] &= ~both
