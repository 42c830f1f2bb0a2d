"""The row that an operator's error comes from, so that the message can name it.

Segments are linear and operators work by key, so over a part of their rows they do a part of their work. An error that
comes again over one row, or one key, alone is met with that row; halving finds it. If it does not come again, no row is
named.

Where the row has the parameters of a family's member, the error is that member's, and the search goes on without its
rows: others may fail too, and what is left of the family goes on (`maintain.expelling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction, EvaluationError, TooLarge
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.names import HASH
from viewkeeper.model.row_names import row_text
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.operators.description import ExplainContext
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.segment_execution import run_segment
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.operator_errors import (
    PROCESS_FAULTS,
    FailedMember,
    OperatorError,
    describe_error,
    is_data_error,
)

PortRows = Sequence[pa.Table | None]
Attempt = Callable[[PortRows], object]
SourceChanges = Callable[[str], pa.Table | None]
"""The changes that a source gave in this batch, where they are at hand."""

_MAX_NAMED_COLUMNS = 8
"""Columns of a row that are shown, if it is not known which are its key."""
_MAX_GROUP_ROWS_TRIED = 64
"""Rows that are looked at for the last one that came into a group."""
_MAX_FAILED_MEMBERS = 256
"""Members of a family that are found at a time."""


def attribute_to_segment(
    statements: PreparedStatements,
    dataflow: Dataflow,
    segment: Segment,
    consumer: str,
    rows: pa.Table,
    attempt: Attempt,
    error: Exception,
    source_changes: SourceChanges,
) -> OperatorError | None:
    """The error of a segment with the row of its source that it comes from; None if there is no such row."""
    source = dataflow.operators[segment.source]
    left = _narrow_ports([rows], attempt, type(error), jointly=False)
    if left is None:
        return None

    def told(ports: PortRows) -> str:
        return _error_message(
            error,
            _describe_row(dataflow, source, ports[0]),
            _describe_latest_row(statements, dataflow, source, ports[0], source_changes),
        )

    family = _find_family(rows, lambda name: base_column(dataflow, source, name))
    members = (
        () if family is None else _find_failing_members(family, [rows], left, attempt, type(error), told, jointly=False)
    )
    return OperatorError(consumer, told(left), members)


def attribute_to_operator(
    statements: PreparedStatements,
    dataflow: Dataflow,
    operator: Operator,
    ports: PortRows,
    attempt: Attempt,
    error: Exception,
    source_changes: SourceChanges,
) -> OperatorError | None:
    """The error of an operator with the key of the rows that it comes from; None if there are no such rows."""
    jointly = operator.has_joint_ports
    left = _narrow_ports(ports, attempt, type(error), jointly)
    if left is None:
        return None
    segment = next(operator.segments(), None)
    rows = next((p for p in left if p is not None and p.num_rows), None)

    def told(ports: PortRows) -> str:
        first = next((p for p in ports if p is not None and p.num_rows), None)
        return _error_message(
            error,
            _describe_key(dataflow, operator, first),
            _describe_latest_row(statements, dataflow, operator, first, source_changes),
        )

    family = None if segment is None else _find_family(rows, lambda name: _segment_base_column(dataflow, segment, name))
    members = (
        ()
        if family is None
        else _find_failing_members(family, ports, left, attempt, type(error), told, jointly=jointly)
    )
    return OperatorError(operator.id, told(left), members)


def _narrow_ports(ports: PortRows, attempt: Attempt, error_type: type[Exception], jointly: bool) -> PortRows | None:
    """Halve what is at the ports, all at once by hash or one port after the other, while the error comes again."""

    def fails(part: PortRows) -> bool:
        try:
            attempt(part)
        except error_type:
            return True
        return False

    came, left = False, list(ports)
    todo = [None] if jointly else [i for i, port in enumerate(ports) if port is not None and port.num_rows]
    for place in todo:
        going = True
        while going:
            going = False
            for part in _split_ports(left, place):
                if fails(part):
                    came, left, going = True, list(part), True
                    break
    return left if came or fails(left) else None


def _split_ports(ports: PortRows, port_index: int | None) -> Iterator[PortRows]:
    """Two parts of one port's rows, or of the keys at all ports; none if there is nothing to divide."""
    if port_index is None:
        hashes = np.unique(np.concatenate([p[HASH].to_numpy() for p in ports if p is not None]))
        if len(hashes) > 1:
            for half in np.array_split(hashes, 2):
                yield [None if p is None else p.filter(pa.array(np.isin(p[HASH].to_numpy(), half))) for p in ports]
        return
    port = ports[port_index]
    if port is None or port.num_rows < 2:
        return
    if HASH in port.column_names:  # a key's rows stay together: what comes of them may be wrong without the others
        codes = port[HASH].to_numpy()
        order = np.sort(codes)
        pivot = order[len(order) // 2]
        low = codes < pivot if pivot > order[0] else codes <= pivot
        masks = [low, ~low] if low.any() and not low.all() else []
        parts = [port.filter(pa.array(mask)) for mask in masks]
    else:
        middle = port.num_rows // 2
        parts = [port.slice(0, middle), port.slice(middle)]
    for part in parts:
        yield [part if i == port_index else p for i, p in enumerate(ports)]


# -- members of families ------------------------------------------------------------------------------------------


class _FamilyColumns(NamedTuple):
    """The table of a family's parameters, and the columns in which rows have them."""

    table: Table
    columns: tuple[str, ...]

    def keys(self, rows: pa.Table) -> pa.Array:
        """Of rows, the members' keys in that table."""
        names = [k.column for k in self.table.key]
        arrow = {f.name: f.type for f in self.table.arrow}
        own = [rows.column(mine).cast(arrow[name]) for mine, name in zip(self.columns, names, strict=True)]
        return encode_keys(self.table, pa.table(own, names=names))


def _find_family(rows: pa.Table | None, locate: Callable[[str], tuple[Table, str] | None]) -> _FamilyColumns | None:
    """The family of views made by name whose parameters rows have, if they do. `place`: the table's column it is."""
    found: dict[int, tuple[Table, dict[str, str]]] = {}
    for name in () if rows is None else rows.column_names:
        at = locate(name)
        if at is not None and at[0].is_hidden:
            found.setdefault(at[0].id, (at[0], {}))[1][at[1]] = name
    for table, columns in found.values():
        if all(k.column in columns for k in table.key):
            return _FamilyColumns(table, tuple(columns[k.column] for k in table.key))
    return None


def _find_failing_members(
    family: _FamilyColumns,
    ports: PortRows,
    failing: PortRows,
    attempt: Attempt,
    error_type: type[Exception],
    describe: Callable[[PortRows], str],
    *,
    jointly: bool,
) -> list[FailedMember]:
    """The members that rows at the ports fail for, the first being that of `left`."""
    found: list[FailedMember] = []
    parts: PortRows | None = failing
    with suppress(Exception):  # those that were found are known to fail
        while parts is not None and len(found) < _MAX_FAILED_MEMBERS:
            rows = next(p for p in parts if p is not None and p.num_rows)
            key = family.keys(rows.slice(0, 1))[0].as_py()
            found.append(FailedMember(family.table.id, key, describe(parts)))
            ports = [None if p is None else _without_member(family, p, key) for p in ports]
            parts = _narrow_ports(ports, attempt, error_type, jointly)
    return found


def _without_member(family: _FamilyColumns, rows: pa.Table, key: bytes) -> pa.Table:
    """The rows of other members."""
    if not set(family.columns) <= set(rows.column_names):
        return rows
    return rows.filter(pc.not_equal(family.keys(rows), pa.scalar(key, pa.binary())))


# -- names ------------------------------------------------------------------------------------------------------------


def _error_message(error: Exception, location: str, latest: str) -> str:
    """The error with where it comes from: a row, or a group and the last row that came into it."""
    text = describe_error(error).rstrip()
    if not is_data_error(error):
        met = f"the row with {latest}" if latest else location
        return f"{text.rstrip('.')}. It was met with {met}, which need not be its cause." if met else text
    if location:
        text = f"{text} In {location}."
    return f"{text} The last row that came into it is the one with {latest}." if latest else text


def _describe_row(dataflow: Dataflow, source: Operator, rows: pa.Table | None) -> str:
    """A source's row: by its table's key, by its group's, or by what it is made of."""
    if rows is None or not rows.num_rows:
        return ""
    if source.input_table is not None:
        table = dataflow.tables[source.input_table]
        return f"the row with {row_text(rows, {k.column: f'{table.name}.{k.column}' for k in table.key})}"
    columns = source.display_key
    if columns is None:
        columns = tuple(c for c in rows.column_names if c not in (WEIGHT, HASH))[:_MAX_NAMED_COLUMNS]
    traced = ExplainContext(dataflow, {}, {}).column_texts(source.id)
    places = {c: base_column(dataflow, source, c) for c in columns if c in rows.column_names}
    return _name_row(source, rows, _display_names(places, traced.get))


def _describe_key(dataflow: Dataflow, operator: Operator, rows: pa.Table | None) -> str:
    """The key of an operator's first row."""
    segment = next(operator.segments(), None)
    if rows is None or segment is None:
        return ""
    columns = operator.key_columns
    if not columns and operator.grouping_columns is None:
        columns = tuple(c for c in rows.column_names if c not in (WEIGHT, HASH))[:_MAX_NAMED_COLUMNS]
    known = {n.name for n in segment.exprs}
    told = ExplainContext(dataflow, {}, {})
    places = {c: _segment_base_column(dataflow, segment, c) for c in columns if c in rows.column_names}
    return _name_row(
        operator, rows, _display_names(places, lambda c: told.describe_output(segment, c) if c in known else None)
    )


def _name_row(operator: Operator, rows: pa.Table, names: Mapping[str, str]) -> str:
    what = "row" if operator.grouping_columns is None else "group"
    if names:
        return f"the {what} with {row_text(rows, names)}"
    return "the group of all rows" if operator.grouping_columns == () else ""


def _describe_latest_row(
    statements: PreparedStatements,
    dataflow: Dataflow,
    group: Operator,
    rows: pa.Table | None,
    source_changes: SourceChanges,
) -> str:
    """Of a group: the last row of its table that came into it in this batch, where that is at hand."""
    segment = next(group.segments(), None)
    if rows is None or not rows.num_rows or segment is None or group.grouping_columns is None:
        return ""
    source = dataflow.operators[segment.source]
    came = None if source.input_table is None else source_changes(source.id)
    if source.input_table is None or came is None:
        return ""
    came = came.filter(pc.greater(came[WEIGHT], 0))
    key = {c: rows[c][0].as_py() for c in group.grouping_columns}
    table = dataflow.tables[source.input_table]
    for at in reversed(range(max(0, came.num_rows - _MAX_GROUP_ROWS_TRIED), came.num_rows)):
        row = came.slice(at, 1)
        with suppress(Exception):  # the row may be one that the segment fails on
            given = run_segment(statements, segment, row)
            if not given.num_rows or any(given[c][0].as_py() != value for c, value in key.items()):
                continue
            return row_text(row, {k.column: f"{table.name}.{k.column}" for k in table.key})
    return ""


def _display_names(
    base_columns: Mapping[str, tuple[Table, str] | None], expression: Callable[[str], str | None]
) -> dict[str, str]:
    """Columns by the names that users know: a table's column, or the expression that it is. Others are left out.

    A family is not known to users: of its rows, what is a table's is shown.
    """
    if any(at is not None and at[0].is_hidden for at in base_columns.values()):
        return {c: f"{at[0].name}.{at[1]}" for c, at in base_columns.items() if at is not None and not at[0].is_hidden}
    names = {c: expression(c) if at is None else f"{at[0].name}.{at[1]}" for c, at in base_columns.items()}
    return {c: name for c, name in names.items() if name is not None}


def base_column(dataflow: Dataflow, operator: Operator, name: str) -> tuple[Table, str] | None:
    """The table and its column that an operator's column shows as it is, if it is one."""
    if operator.input_table is not None:
        return dataflow.tables[operator.input_table], name
    found = operator.lineage(name)
    return None if found is None else _expression_base_column(dataflow, *found)


def _segment_base_column(dataflow: Dataflow, segment: Segment, name: str) -> tuple[Table, str] | None:
    expr = next((n.expr for n in segment.exprs if n.name == name), None)
    return None if expr is None else _expression_base_column(dataflow, segment.source, expr)


def _expression_base_column(dataflow: Dataflow, source: str, expr: Expr) -> tuple[Table, str] | None:
    return base_column(dataflow, dataflow.operators[source], str(expr.value)) if expr.op == "column" else None


# One view must not stop the others: an error that a view's own rows cause is that view's alone.
#
# Where operators run, `rounds.failures` names the operator and `broken_by` its views. Here are the two places where one
# view's rows are at hand and no operator is: at its sink, and in its table in the store. State that contradicts itself
# is that of the views that are made from it, as far as anybody can say.


class BrokenViews(EvaluationError):
    """These views failed on their own rows.

    `members`: of a family of views made by name, those that it failed for; or `key`, that of the row in its table.
    """

    def __init__(
        self, views: frozenset[int], message: str, members: Sequence[FailedMember] = (), key: bytes | None = None
    ) -> None:
        self.views = views
        self.members = tuple(members)
        self.key = key
        super().__init__(message)


class Contradicted(Contradiction):
    """State that these views are made from contradicts itself."""

    def __init__(self, views: frozenset[int], message: str) -> None:
        self.views = views
        super().__init__(message)


def broken_views(dataflow: Dataflow, names: Mapping[int, str], error: OperatorError) -> BrokenViews:
    """The views that an operator's error suspends: those that it is part of."""
    views = dataflow.views_of(error.operator)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    return BrokenViews(views, f"{stopped}: {error.message}", error.members)


@contextmanager
def attribute_to_view(view: Table) -> Iterator[None]:
    """What fails in here fails on the rows of this view, unless the machine or the store does."""
    try:
        yield
    except Contradiction as wrong:
        raise Contradicted(frozenset([view.id]), wrong.message) from wrong
    except (BrokenViews, *PROCESS_FAULTS):
        raise
    except Exception as error:
        raise BrokenViews(frozenset([view.id]), f"{view.name}: {describe_error(error)}") from error


@contextmanager
def attribute_store_errors(views: Iterable[Table]) -> Iterator[None]:
    """A commit: a row that the store cannot hold stops the view that it is of."""
    try:
        yield
    except TooLarge as large:
        for view in views:
            if view.id == large.table:
                raise BrokenViews(
                    frozenset([view.id]), f"{view.name}: {describe_error(large)}", key=large.key
                ) from large
        raise
