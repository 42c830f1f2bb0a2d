"""Error attribution: finds the row, the operator and the views behind an evaluation error.

Segments are linear and operators work by key, so they can run on a part of their rows or keys. The search halves the
rows for as long as the same error occurs on one half; the row that remains is named in the message. If the error does
not occur again, no row is named.

If the row has the parameters of a family member, the error is attributed to that member. The search continues without
the member's rows, because other members may fail too. The family continues without the failing members
(`maintain.load.suspension`).
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
"""Return the changes of a source in this batch if they are in memory, else None."""

_MAX_NAMED_COLUMNS = 8
"""Columns of a row that a message shows if its key columns are unknown."""
_MAX_GROUP_ROWS_TRIED = 64
"""Rows that are searched for the last one that was inserted into a group."""
_MAX_FAILED_MEMBERS = 256
"""Failing members of a family that one search finds at most."""


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
    """Return a segment's error with the row of its source that causes it; None if no such row is found."""
    source = dataflow.operators[segment.source]
    narrowed = _narrow_ports([rows], attempt, type(error), jointly=False)
    if narrowed is None:
        return None

    def describe(ports: PortRows) -> str:
        return _error_message(
            error,
            _describe_row(dataflow, source, ports[0]),
            _describe_latest_row(statements, dataflow, source, ports[0], source_changes),
        )

    family = _find_family(rows, lambda name: base_column(dataflow, source, name))
    members = (
        ()
        if family is None
        else _find_failing_members(family, [rows], narrowed, attempt, type(error), describe, jointly=False)
    )
    return OperatorError(consumer, describe(narrowed), members)


def attribute_to_operator(
    statements: PreparedStatements,
    dataflow: Dataflow,
    operator: Operator,
    ports: PortRows,
    attempt: Attempt,
    error: Exception,
    source_changes: SourceChanges,
) -> OperatorError | None:
    """Return an operator's error with the key of the rows that cause it; None if no such rows are found."""
    jointly = operator.has_joint_ports
    narrowed = _narrow_ports(ports, attempt, type(error), jointly)
    if narrowed is None:
        return None
    segment = next(operator.segments(), None)
    rows = next((port for port in narrowed if port is not None and port.num_rows), None)

    def describe(ports: PortRows) -> str:
        first = next((port for port in ports if port is not None and port.num_rows), None)
        return _error_message(
            error,
            _describe_key(dataflow, operator, first),
            _describe_latest_row(statements, dataflow, operator, first, source_changes),
        )

    family = None if segment is None else _find_family(rows, lambda name: _segment_base_column(dataflow, segment, name))
    members = (
        ()
        if family is None
        else _find_failing_members(family, ports, narrowed, attempt, type(error), describe, jointly=jointly)
    )
    return OperatorError(operator.id, describe(narrowed), members)


def _narrow_ports(ports: PortRows, attempt: Attempt, error_type: type[Exception], jointly: bool) -> PortRows | None:
    """Halve the rows at the ports while the error occurs again; None if it never does.

    `jointly`: halve all ports together by hash; otherwise one port after the other.
    """

    def fails(half: PortRows) -> bool:
        try:
            attempt(half)
        except error_type:
            return True
        return False

    has_failed, narrowed = False, list(ports)
    indexes = [None] if jointly else [number for number, port in enumerate(ports) if port is not None and port.num_rows]
    for index in indexes:
        is_halving = True
        while is_halving:
            is_halving = False
            for half in _split_ports(narrowed, index):
                if fails(half):
                    has_failed, narrowed, is_halving = True, list(half), True
                    break
    return narrowed if has_failed or fails(narrowed) else None


def _split_ports(ports: PortRows, port_index: int | None) -> Iterator[PortRows]:
    """Yield the ports with either half of one port's rows or of all ports' keys; nothing if they are indivisible."""
    if port_index is None:
        hashes = np.unique(np.concatenate([rows[HASH].to_numpy() for rows in ports if rows is not None]))
        if len(hashes) > 1:
            for half in np.array_split(hashes, 2):
                yield [
                    None if rows is None else rows.filter(pa.array(np.isin(rows[HASH].to_numpy(), half)))
                    for rows in ports
                ]
        return
    port = ports[port_index]
    if port is None or port.num_rows < 2:
        return
    if HASH in port.column_names:  # keep a key's rows together: the result of a part of them may be wrong
        hashes_of_port = port[HASH].to_numpy()
        order = np.sort(hashes_of_port)
        pivot = order[len(order) // 2]
        low = hashes_of_port < pivot if pivot > order[0] else hashes_of_port <= pivot
        masks = [low, ~low] if low.any() and not low.all() else []
        halves = [port.filter(pa.array(mask)) for mask in masks]
    else:
        middle = port.num_rows // 2
        halves = [port.slice(0, middle), port.slice(middle)]
    for part in halves:
        yield [part if number == port_index else rows for number, rows in enumerate(ports)]


# -- members of families ------------------------------------------------------------------------------------------


class _FamilyColumns(NamedTuple):
    """A family's parameter table, and the columns of the rows that hold the parameters."""

    table: Table
    columns: tuple[str, ...]

    def keys(self, rows: pa.Table) -> pa.Array:
        """Return the key in the parameter table of each row's member."""
        names = [k.column for k in self.table.key]
        types = {f.name: f.type for f in self.table.arrow}
        columns = [rows.column(column).cast(types[name]) for column, name in zip(self.columns, names, strict=True)]
        return encode_keys(self.table, pa.table(columns, names=names))


def _find_family(rows: pa.Table | None, locate: Callable[[str], tuple[Table, str] | None]) -> _FamilyColumns | None:
    """Return the family whose parameters the rows have, or None. `locate` maps a column to the base column it shows."""
    found: dict[int, tuple[Table, dict[str, str]]] = {}
    for name in () if rows is None else rows.column_names:
        base = locate(name)
        if base is not None and base[0].is_hidden:
            found.setdefault(base[0].id, (base[0], {}))[1][base[1]] = name
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
    """Return the members whose rows at the ports fail, first the member of `failing`."""
    found: list[FailedMember] = []
    narrowed: PortRows | None = failing
    with suppress(Exception):  # the members found so far do fail
        while narrowed is not None and len(found) < _MAX_FAILED_MEMBERS:
            rows = next(port for port in narrowed if port is not None and port.num_rows)
            key = family.keys(rows.slice(0, 1))[0].as_py()
            found.append(FailedMember(family.table.id, key, describe(narrowed)))
            ports = [None if port is None else _without_member(family, port, key) for port in ports]
            narrowed = _narrow_ports(ports, attempt, error_type, jointly)
    return found


def _without_member(family: _FamilyColumns, rows: pa.Table, key: bytes) -> pa.Table:
    """Return the rows of all other members."""
    if not set(family.columns) <= set(rows.column_names):
        return rows
    return rows.filter(pc.not_equal(family.keys(rows), pa.scalar(key, pa.binary())))


# -- names ------------------------------------------------------------------------------------------------------------


def _error_message(error: Exception, location: str, latest: str) -> str:
    """Return the error with its location: a row, or a group and the row that was inserted into it last."""
    text = describe_error(error).rstrip()
    if not is_data_error(error):
        place = f"the row with {latest}" if latest else location
        return f"{text.rstrip('.')}. It was met with {place}, which need not be its cause." if place else text
    if location:
        text = f"{text} In {location}."
    return f"{text} The last row that came into it is the one with {latest}." if latest else text


def _describe_row(dataflow: Dataflow, source: Operator, rows: pa.Table | None) -> str:
    """Describe a source's row by its table's key, by its group's key, or by the expressions of its columns."""
    if rows is None or not rows.num_rows:
        return ""
    if source.input_table is not None:
        table = dataflow.tables[source.input_table]
        return f"the row with {row_text(rows, {k.column: f'{table.name}.{k.column}' for k in table.key})}"
    columns = source.display_key
    if columns is None:
        columns = tuple(column for column in rows.column_names if column not in (WEIGHT, HASH))[:_MAX_NAMED_COLUMNS]
    expressions = ExplainContext(dataflow, {}, {}).column_texts(source.id)
    base_columns = {column: base_column(dataflow, source, column) for column in columns if column in rows.column_names}
    return _name_row(source, rows, _display_names(base_columns, expressions.get))


def _describe_key(dataflow: Dataflow, operator: Operator, rows: pa.Table | None) -> str:
    """Describe the key of the first row at an operator's port."""
    segment = next(operator.segments(), None)
    if rows is None or segment is None:
        return ""
    columns = operator.key_columns
    if not columns and operator.grouping_columns is None:
        columns = tuple(column for column in rows.column_names if column not in (WEIGHT, HASH))[:_MAX_NAMED_COLUMNS]
    expression_names = {n.name for n in segment.exprs}
    context = ExplainContext(dataflow, {}, {})
    base_columns = {
        column: _segment_base_column(dataflow, segment, column) for column in columns if column in rows.column_names
    }
    return _name_row(
        operator,
        rows,
        _display_names(
            base_columns,
            lambda column: context.describe_output(segment, column) if column in expression_names else None,
        ),
    )


def _name_row(operator: Operator, rows: pa.Table, names: Mapping[str, str]) -> str:
    noun = "row" if operator.grouping_columns is None else "group"
    if names:
        return f"the {noun} with {row_text(rows, names)}"
    return "the group of all rows" if operator.grouping_columns == () else ""


def _describe_latest_row(
    statements: PreparedStatements,
    dataflow: Dataflow,
    group: Operator,
    rows: pa.Table | None,
    source_changes: SourceChanges,
) -> str:
    """Describe the row that was inserted last into a group in this batch; empty if the changes are not in memory."""
    segment = next(group.segments(), None)
    if rows is None or not rows.num_rows or segment is None or group.grouping_columns is None:
        return ""
    source = dataflow.operators[segment.source]
    inserted = None if source.input_table is None else source_changes(source.id)
    if source.input_table is None or inserted is None:
        return ""
    inserted = inserted.filter(pc.greater(inserted[WEIGHT], 0))
    key = {c: rows[c][0].as_py() for c in group.grouping_columns}
    table = dataflow.tables[source.input_table]
    for position in reversed(range(max(0, inserted.num_rows - _MAX_GROUP_ROWS_TRIED), inserted.num_rows)):
        row = inserted.slice(position, 1)
        with suppress(Exception):  # the segment may fail on this row
            outputs = run_segment(statements, segment, row)
            if not outputs.num_rows or any(outputs[c][0].as_py() != value for c, value in key.items()):
                continue
            return row_text(row, {k.column: f"{table.name}.{k.column}" for k in table.key})
    return ""


def _display_names(
    base_columns: Mapping[str, tuple[Table, str] | None], expression: Callable[[str], str | None]
) -> dict[str, str]:
    """Return display names of columns: `table.column` of a base table, or the expression; others are left out.

    Users do not know families: of a family's rows only base table columns are shown.
    """
    if any(base is not None and base[0].is_hidden for base in base_columns.values()):
        return {
            column: f"{base[0].name}.{base[1]}"
            for column, base in base_columns.items()
            if base is not None and not base[0].is_hidden
        }
    names = {
        column: expression(column) if base is None else f"{base[0].name}.{base[1]}"
        for column, base in base_columns.items()
    }
    return {column: name for column, name in names.items() if name is not None}


def base_column(dataflow: Dataflow, operator: Operator, name: str) -> tuple[Table, str] | None:
    """Return the base table and its column that an operator's column shows unchanged, or None."""
    if operator.input_table is not None:
        return dataflow.tables[operator.input_table], name
    origin = operator.lineage(name)
    return None if origin is None else _expression_base_column(dataflow, *origin)


def _segment_base_column(dataflow: Dataflow, segment: Segment, name: str) -> tuple[Table, str] | None:
    expr = next((n.expr for n in segment.exprs if n.name == name), None)
    return None if expr is None else _expression_base_column(dataflow, segment.source, expr)


def _expression_base_column(dataflow: Dataflow, source: str, expr: Expr) -> tuple[Table, str] | None:
    return base_column(dataflow, dataflow.operators[source], str(expr.value)) if expr.op == "column" else None


# One view's error must not stop the others: an error that a view's own rows cause suspends that view only.
#
# When an operator fails, `operator_errors` names the operator and `broken_views` its views. The two context managers
# below handle the places where the view is known and no operator runs: at its sink, and in its table in the store.
# Contradictory state is attributed to the views that are computed from it.


class BrokenViews(EvaluationError):
    """Views that failed on their own rows.

    `members` are the members of a family whose rows failed; `key` is the key of the row in the view's table.
    """

    def __init__(
        self, views: frozenset[int], message: str, members: Sequence[FailedMember] = (), key: bytes | None = None
    ) -> None:
        self.views = views
        self.members = tuple(members)
        self.key = key
        super().__init__(message)


class Contradicted(Contradiction):
    """State that these views are computed from contradicts itself."""

    def __init__(self, views: frozenset[int], message: str) -> None:
        self.views = views
        super().__init__(message)


def broken_views(dataflow: Dataflow, names: Mapping[int, str], error: OperatorError) -> BrokenViews:
    """Return the error for the views that an operator's error suspends: all views that the operator is part of."""
    views = dataflow.views_of(error.operator)
    view_names = ", ".join(sorted(names.get(v, "the new view") for v in views))
    return BrokenViews(views, f"{view_names}: {error.message}", error.members)


@contextmanager
def attribute_to_view(view: Table) -> Iterator[None]:
    """Attribute errors of the block to this view, unless they are process faults."""
    try:
        yield
    except Contradiction as contradiction:
        raise Contradicted(frozenset([view.id]), contradiction.message) from contradiction
    except (BrokenViews, *PROCESS_FAULTS):
        raise
    except Exception as error:
        raise BrokenViews(frozenset([view.id]), f"{view.name}: {describe_error(error)}") from error


@contextmanager
def attribute_store_errors(views: Iterable[Table]) -> Iterator[None]:
    """In a commit, attribute a row that is too large for the store to its view."""
    try:
        yield
    except TooLarge as error:
        for view in views:
            if view.id == error.table:
                raise BrokenViews(
                    frozenset([view.id]), f"{view.name}: {describe_error(error)}", key=error.key
                ) from error
        raise
