"""Store assignment: casts the values of a query to the types of the columns that they are written to.

Spark casts a value of another type on assignment if the types are similar enough (ANSI store assignment). The intake of
rows (`model.intake`) accepts only types that keep the value. A statement accepts these casts in addition, as Spark
does:

    from            to               the value
    DECIMAL         FLOAT, DOUBLE    the nearest one: 50.0 is a DECIMAL in Spark
    DECIMAL         integers         the same; Spark cuts off digits after the point, here they are an error
    DATE            TIMESTAMP        midnight
    anything but    STRING           its text, as CAST writes it
    nested types
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions import render
from viewkeeper.expressions.backends.duckdb_functions import register_functions
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.model.intake.columns import column_values
from viewkeeper.model.names import quoted
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.types import Type
from viewkeeper.resources.prepared_statements import connect

_TYPE_BY_ARROW = {types.arrow(t): t for t in types.SCALAR_TYPES if t != types.TIMESTAMP}


def cast_for_assignment(table: Table, rows: pa.Table) -> pa.Table:
    """Cast the rows of a query, whose columns have the table's names, where only a statement may cast."""
    casts: list[Named] = []
    for name in rows.column_names:
        target, source = table.by_name[name.lower()].type, _column_type(rows.schema.field(name).type)
        if source is None or not _is_assignment_cast(source, target):
            continue
        input_values = column_values(table.name, Column(name, source), rows[name])
        rows = rows.set_column(rows.column_names.index(name), name, input_values)
        if types.is_integer(target):
            with suppress(pa.ArrowInvalid):  # the intake refuses the value then
                rows = rows.set_column(rows.column_names.index(name), name, pc.cast(input_values, types.arrow(target)))
        else:
            casts.append(Named(name, Expr("Cast", target, (column(name, source),), ("ANSI",))))
    if not casts or not rows.num_rows:
        return rows
    select_list = ", ".join(f"{render(cast.expr)} AS {quoted(cast.name)}" for cast in casts)
    with connect(threads=1) as connection:
        register_functions(connection)
        connection.register("given", rows.select([cast.name for cast in casts]))
        converted = connection.sql(f"SELECT {select_list} FROM given").to_arrow_table()
    for cast in casts:
        values = converted[cast.name].cast(types.arrow(cast.expr.type))
        rows = rows.set_column(rows.column_names.index(cast.name), cast.name, values)
    return rows


def _is_assignment_cast(source: Type, target: Type) -> bool:
    if target == types.STRING:
        return source != types.STRING
    if types.decimal_digits(source):
        return types.is_float(target) or types.is_integer(target)
    return source == types.DATE and target in (types.TIMESTAMP, types.TIMESTAMP_NTZ)


def _column_type(arrow_type: pa.DataType) -> Type | None:
    """The type of a column of a query's result; None if no column type corresponds."""
    if pa.types.is_decimal128(arrow_type):
        return types.decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        return types.TIMESTAMP
    return _TYPE_BY_ARROW.get(arrow_type)
