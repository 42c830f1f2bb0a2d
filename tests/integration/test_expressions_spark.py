"""Every supported expression means what Spark means: the same values, the same types, an error on the same rows.

Spark evaluates all expressions of a group (`expression_cases.py`) in one query, each inside `TryEval(struct(…))`: a row
that fails gives a NULL struct instead of ending the query. Catalyst's reader and the renderer take the same SQL
to DuckDB. Rows on which Spark fails are then run one by one in DuckDB, where each must fail too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from viewkeeper.errors import EvaluationError
from viewkeeper.expressions import can_raise, register_functions, render, translate_error
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan import catalyst
from viewkeeper.plan.logical.nodes import Expr, Node, Project, Scan

from .expression_cases import GROUPS, Group

# --- Spark's side ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def front(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark asks the JVM's locale for the letters of text beyond ASCII; a view has the same everywhere."""
    locale = spark._jvm.java.util.Locale
    there = locale.getDefault()
    locale.setDefault(locale.ROOT)
    session = catalyst.front_session(spark)
    session.conf.set("spark.sql.codegen.wholeStage", "false")  # hundreds of expressions are not worth compiling
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")  # it evaluates what would not be reached
    yield session
    locale.setDefault(there)


def read(spark: SparkSession, group: Group) -> list[Expr]:
    """The group's expressions as the reader gives them, over columns with the group's own names."""
    columns = tuple(Column(name, types.parse_type(type_)) for name, type_, _ in group.columns)
    key = Column("key_", types.BIGINT, nullable=False)
    table = Table(1, "t", (key, *columns), (KeyPart("key_"),))
    query = catalyst.read_query(spark, _select(group, "t"), {"t": table})
    named = _inlined(query.root)
    return [named[column.name] for _, column in query.output]


def _inlined(node: Node) -> dict[str, Expr]:
    """The node's columns as expressions over the table; Catalyst may split a projection in two."""
    if isinstance(node, Scan):
        return {c.name: Expr("column", c.type, (), name, c.nullable) for c, name in node.fields}
    assert isinstance(node, Project)
    below = _inlined(node.child)
    return {n.name: _replaced(n.expr, below) for n in node.exprs}


def _replaced(expr: Expr, columns: dict[str, Expr]) -> Expr:
    if expr.op == "column":
        return columns[expr.value]
    return Expr(expr.op, expr.type, tuple(_replaced(a, columns) for a in expr.args), expr.value, expr.nullable)


def _select(group: Group, table: str) -> str:
    return "SELECT " + ", ".join(f"{case} AS r{i}" for i, case in enumerate(group.cases)) + f" FROM {table}"


def evaluate(spark: SparkSession, group: Group) -> pa.Table:
    """Spark's results: for each expression a struct with one field, NULL where Spark fails."""
    data = group.data()
    outside = pa.schema(
        [pa.field(name, types.external_type(types.parse_type(type_))) for name, type_, _ in group.columns]
    )
    casts = [f"CAST({name} AS {type_}) AS {name}" for name, type_, _ in group.columns]  # Arrow has no timestamp_ntz
    frame = spark.createDataFrame(data.cast(outside)).selectExpr(*casts)
    frame.createOrReplaceTempView("spark_side")
    analysed = spark.sql(_select(group, "spark_side"))._jdf.queryExecution().analyzed()
    jvm = spark._jvm
    classes = jvm.org.apache.spark.sql.catalyst.expressions
    struct_of = _singleton(jvm, "org.apache.spark.sql.catalyst.expressions.CreateStruct$")
    column_of = _singleton(jvm, "org.apache.spark.sql.classic.ExpressionUtils$")
    chosen = jvm.java.util.ArrayList()
    for i in range(len(group.cases)):
        one = jvm.java.util.ArrayList()
        one.add(classes.KnownNullable(analysed.projectList().apply(i).child()))  # Arrow sees its value in a NULL struct
        tried = classes.TryEval(struct_of.apply(jvm.PythonUtils.toSeq(one)))
        chosen.add(column_of.column(tried))
    result = DataFrame(frame._jdf.select(jvm.PythonUtils.toSeq(chosen)), spark).toArrow()
    return result.rename_columns([f"r{i}" for i in range(len(group.cases))])


def _singleton(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


# --- DuckDB's side and the comparison --------------------------------------------------------------------------------


def differences(group: Group, exprs: list[Expr], expected: pa.Table) -> list[str]:
    """What is not as in Spark, one line for each expression."""
    connection = duckdb.connect()
    register_functions(connection)
    connection.register("t", group.data().append_column("row_", pa.array(range(expected.num_rows))))
    connection.execute("CREATE TABLE rows AS SELECT * FROM t")
    return [
        f"{case}: {problem}"
        for i, case in enumerate(group.cases)
        if (problem := _difference(connection, group, exprs[i], expected.column(i).combine_chunks()))
    ]


def _difference(connection: Any, group: Group, expr: Expr, expected: pa.StructArray) -> str | None:
    text = render(expr)
    failed = [i for i, ok in enumerate(expected.is_valid().to_pylist()) if not ok]
    values = expected.field(0)
    if values.type != types.external_type(expr.type):
        return f"Spark's type is {values.type}, the reader says {expr.type}"
    if failed and not can_raise(expr):
        return f"Spark fails on {_row(connection, group, failed[0])}, can_raise says never"
    connection.register("failed", pa.table({"row_": pa.array(failed, pa.int64())}))
    query = f"SELECT {text} AS r FROM rows WHERE row_ NOT IN (FROM failed) ORDER BY row_"
    try:
        found = connection.sql(query).to_arrow_table().column(0).combine_chunks()
    except duckdb.Error as error:
        return f"{_first_failure(connection, group, text, failed)}: {str(error).splitlines()[0]}"
    if found.type != types.arrow(expr.type):
        return f"type {found.type}, Spark's is {expr.type}"
    wanted = values.filter(expected.is_valid())
    kept = [i for i in range(len(expected)) if i not in set(failed)]
    for i, ours, sparks in zip(kept, comparable(found), comparable(wanted), strict=True):
        if ours != sparks:
            return f"on {_row(connection, group, i)} is {ours!r}, in Spark {sparks!r}"
    return _too_lenient(connection, group, text, failed)


def _too_lenient(connection: Any, group: Group, text: str, failed: list[int]) -> str | None:
    """The first row that fails in Spark and not here, among about ten spread over all."""
    for i in failed[:: len(failed) // 10 + 1]:
        try:
            found = connection.execute(f"SELECT {text} AS r FROM rows WHERE row_ = {i}").fetchall()
        except duckdb.Error as error:
            if not isinstance(translate_error(error), EvaluationError):
                return f"{_row(connection, group, i)} fails with {error!r}, which has no error code"
            continue
        return f"on {_row(connection, group, i)} is {found[0][0]!r}, Spark fails"
    return None


def _first_failure(connection: Any, group: Group, text: str, failed: list[int]) -> str:
    for i in range(connection.execute("SELECT count(*) FROM rows").fetchall()[0][0]):
        if i not in failed:
            try:
                connection.execute(f"SELECT {text} FROM rows WHERE row_ = {i}").fetchall()
            except duckdb.Error:
                return f"fails on {_row(connection, group, i)}, not in Spark"
    return "fails on no single row"


def _row(connection: Any, group: Group, i: int) -> str:
    data = group.data()
    return "(" + ", ".join(repr(comparable(data.column(c).combine_chunks())[i]) for c in data.column_names) + ")"


def comparable(array: pa.Array) -> list[Any]:
    """Python values that are equal only if the same bits are: -0.0 is not 0.0, NaN is NaN."""
    if pa.types.is_floating(array.type):
        return [v if v is None else _bits(v) for v in array.to_pylist()]
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    return array.to_pylist()


def _bits(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value!r} ({struct.pack('>d', value).hex()})"


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_same_as_spark(front: SparkSession, group: Group) -> None:
    found = differences(group, read(front, group), evaluate(front, group))
    assert not found, "\n".join(found)
