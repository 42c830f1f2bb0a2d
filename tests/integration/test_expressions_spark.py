"""Every supported expression means what Spark means: the same values, the same types, an error on the same rows.

A group is a small table of awkward values and a list of SQL expressions over its columns. Spark evaluates all of them
in one query (each inside `TryEval(struct(…))`, so that a row that fails gives a NULL struct instead of ending the
query); Catalyst's reader and the renderer take the same SQL to DuckDB. Rows on which Spark fails are then run one by
one in DuckDB, where each must fail too.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from viewkeeper.errors import EvaluationError
from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan import catalyst
from viewkeeper.plan.expressions import can_raise, error_code, render, setup
from viewkeeper.plan.nodes import Expr, Project, Scan

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Group:
    """`columns`: name, Spark type and values. Several columns are crossed unless they are `zipped`."""

    name: str
    columns: tuple[tuple[str, str, tuple[Any, ...]], ...]
    cases: tuple[str, ...]
    zipped: bool = False

    def data(self) -> pa.Table:
        lists = [c[2] for c in self.columns]
        rows = list(zip(*lists, strict=True) if self.zipped else itertools.product(*lists))
        arrays = [_array([r[i] for r in rows], c[1]) for i, c in enumerate(self.columns)]
        return pa.table(arrays, names=[c[0] for c in self.columns])


def _array(values: list[Any], type_: str) -> pa.Array:
    if type_ in ("date", "timestamp", "timestamp_ntz"):  # as days and microseconds
        return pa.array(values, pa.int32() if type_ == "date" else pa.int64()).cast(types.arrow(type_))
    return pa.array(values, types.arrow(type_))


# --- Spark's side ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = catalyst.front_session(None)
    session.conf.set("spark.sql.codegen.wholeStage", "false")  # hundreds of expressions are not worth compiling
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")  # it evaluates what would not be reached
    return session


def read(spark: SparkSession, group: Group) -> list[Expr]:
    """The group's expressions as the reader gives them, over columns with the group's own names."""
    columns = tuple(Column(name, type_) for name, type_, _ in group.columns)
    key = Column("key_", "bigint", nullable=False)
    table = Table(1, "t", (key, *columns), (KeyPart("key_"),))
    query = catalyst.read_query(spark, _select(group, "t"), {"t": table})
    project = query.root
    assert isinstance(project, Project)
    assert isinstance(project.child, Scan)
    stored = {c.name: name for c, name in project.child.fields}
    by_name = {n.name: _renamed(n.expr, stored) for n in project.exprs}
    return [by_name[column.name] for _, column in query.output]


def _renamed(expr: Expr, names: dict[str, str]) -> Expr:
    if expr.op == "column":
        return Expr("column", expr.type, (), names[expr.value], expr.nullable)
    return Expr(expr.op, expr.type, tuple(_renamed(a, names) for a in expr.args), expr.value, expr.nullable)


def _select(group: Group, table: str) -> str:
    return "SELECT " + ", ".join(f"{case} AS r{i}" for i, case in enumerate(group.cases)) + f" FROM {table}"


def evaluate(spark: SparkSession, group: Group) -> pa.Table:
    """Spark's results: for each expression a struct with one field, NULL where Spark fails."""
    data = group.data()
    outside = pa.schema([pa.field(name, types.outside(type_)) for name, type_, _ in group.columns])
    casts = [f"CAST({name} AS {type_}) AS {name}" for name, type_, _ in group.columns]  # Arrow has no timestamp_ntz
    frame = spark.createDataFrame(data.cast(outside)).selectExpr(*casts)
    frame.createOrReplaceTempView("spark_side")
    analysed = spark.sql(_select(group, "spark_side"))._jdf.queryExecution().analyzed()
    jvm = spark._jvm
    struct_of = _singleton(jvm, "org.apache.spark.sql.catalyst.expressions.CreateStruct$")
    column_of = _singleton(jvm, "org.apache.spark.sql.classic.ExpressionUtils$")
    chosen = jvm.java.util.ArrayList()
    for i in range(len(group.cases)):
        one = jvm.java.util.ArrayList()
        one.add(analysed.projectList().apply(i).child())
        tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(struct_of.apply(jvm.PythonUtils.toSeq(one)))
        chosen.add(column_of.column(tried))
    result = DataFrame(frame._jdf.select(jvm.PythonUtils.toSeq(chosen)), spark).toArrow()
    return result.rename_columns([f"r{i}" for i in range(len(group.cases))])


def _singleton(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


# --- DuckDB's side and the comparison --------------------------------------------------------------------------------


def differences(group: Group, exprs: list[Expr], expected: pa.Table) -> list[str]:
    """What is not as in Spark, one line for each expression."""
    connection = duckdb.connect()
    setup(connection)
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
    if values.type != types.outside(expr.type):
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
            found = connection.execute(f"SELECT {text} AS r FROM rows WHERE row_ = {i}").fetchone()
        except duckdb.Error as error:
            if not isinstance(error_code(error), EvaluationError):
                return f"{_row(connection, group, i)} fails with {error!r}, which has no error code"
            continue
        return f"on {_row(connection, group, i)} is {found[0]!r}, Spark fails"
    return None


def _first_failure(connection: Any, group: Group, text: str, failed: list[int]) -> str:
    for i in range(connection.execute("SELECT count(*) FROM rows").fetchone()[0]):
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


# --- The values and the expressions ----------------------------------------------------------------------------------


def both(type_: str, values: tuple[Any, ...], *cases: str, name: str = "") -> Group:
    """Two columns x and y of one type, crossed."""
    return Group(name or type_, (("x", type_, values), ("y", type_, values)), cases)


def integers(bits: int) -> tuple[int | None, ...]:
    top = 2 ** (bits - 1)
    return (None, 0, 1, -1, 2, 3, -3, 7, 10, -10, 100, top - 1, -top, top - 2, 1 - top)


INTEGER_CASES = (
    "x + y", "x - y", "x * y", "x / y", "x div y", "x % y", "pmod(x, y)", "-x", "+x", "abs(x)",
    "x = y", "x <> y", "x < y", "x <= y", "x > y", "x >= y", "x <=> y", "x IS NULL", "x IS NOT NULL",
    "x IN (1, 2, y)", "x IN (1, 10, 100)", "x NOT IN (1, NULL)", "x BETWEEN 0 AND y", "greatest(x, y)", "least(x, y)",
    "coalesce(x, y, 5)", "nullif(x, y)", "nvl2(x, y, 1)", "if(x > y, x, y)",
    "CASE WHEN x > y THEN x WHEN x = y THEN 0 END", "CASE x WHEN 1 THEN 'one' WHEN 2 THEN 'two' ELSE 'many' END",
    "x <> 0 AND 10 / x > 1", "10 / x > 1 AND x <> 0", "x = 0 OR 10 / x > 1", "10 / x > 1 OR x = 0", "NOT (x <> 0 AND 10 / x > 1)",
    "CASE WHEN x <> 0 THEN 1 / x END", "coalesce(x, 1 / y)", "coalesce(1 / y, x)", "if(y <> 0, x / y, 0)",
    "x + 1 / y", "1 / y + x", "(x / y) / y", "x IN (1 / y, 2)", "1 / y IN (x, 2)", "x IS NULL AND y / 0 > 1",
    "x + CAST(1 AS TINYINT)", "x * 2 > y", "try_add(x, y)", "try_subtract(x, y)", "try_multiply(x, y)", "try_divide(x, y)",
    "CAST(x AS TINYINT)", "CAST(x AS SMALLINT)", "CAST(x AS INT)", "CAST(x AS BIGINT)", "CAST(x AS FLOAT)",
    "CAST(x AS DOUBLE)", "CAST(x AS DECIMAL(5,2))", "CAST(x AS DECIMAL(20,0))", "CAST(x AS STRING)",
    "CAST(x AS BOOLEAN)", "try_cast(x AS TINYINT)", "try_cast(x AS DECIMAL(3,1))",
)  # fmt: skip

_FLOATS = (
    None, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 3.7, -3.7, 1e-3, 1e-4, 123456.75, 1e7, -12345678.0,
    127.5, -128.9, 2147483648.0, 9223372036854775808.0, -9223372036854775808.0, 1e20, 3e38, math.nan, math.inf, -math.inf,
)  # fmt: skip
DOUBLES = (*_FLOATS, 0.1 + 0.2, 1e16, 1e22, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 1e-7, 1e39)
FLOATS = (*(v for v in _FLOATS if v != 2**31), 3.4028234663852886e38, 1.401298464324817e-45, 16777216.0)

FLOAT_CASES = (
    "x + y", "x - y", "x * y", "x / y", "x % y", "pmod(x, y)", "-x", "abs(x)",
    "x = y", "x <> y", "x < y", "x <= y", "x > y", "x >= y", "x <=> y", "x IN (0.0, y)", "x IN (0, 1, 'NaN')",
    "greatest(x, y)", "least(x, y)", "coalesce(x, y)", "nullif(x, y)", "x BETWEEN y AND 1",
    "CAST(x AS TINYINT)", "CAST(x AS SMALLINT)", "CAST(x AS INT)", "CAST(x AS BIGINT)", "CAST(x AS FLOAT)",
    "CAST(x AS DOUBLE)", "CAST(x AS DECIMAL(5,2))", "CAST(x AS DECIMAL(38,18))", "CAST(x AS DECIMAL(20,0))",
    "CAST(x AS STRING)", "CAST(x AS BOOLEAN)", "try_cast(x AS INT)", "try_cast(x AS DECIMAL(5,1))",
)  # fmt: skip


def decimal_values(p: int, s: int) -> tuple[Decimal | None, ...]:
    top = 10**p - 1
    unscaled = {0, 1, -1, 5, -5, top, -top, top // 2, top // 3, -(top // 7), 10**s, -(10**s), 3 * 10**s, 10 ** (p // 2), 15, 95, 45 * 10 ** max(s - 2, 0)}
    return (None, *(Decimal(u).scaleb(-s) if p < 28 else Decimal(f"{u}E-{s}") for u in sorted(unscaled) if abs(u) <= top))


def decimals(p1: int, s1: int, p2: int, s2: int) -> Group:
    cases = ("x + y", "x - y", "x * y", "x / y", "x div y", "x % y", "pmod(x, y)", "x = y", "x < y", "x <=> y", "-x", "abs(x)",
             "greatest(x, y)", "coalesce(x, y)", "try_add(x, y)", "try_divide(x, y)", "try_multiply(x, y)",
             "CAST(x AS TINYINT)", "CAST(x AS INT)", "CAST(x AS BIGINT)", "CAST(x AS FLOAT)", "CAST(x AS DOUBLE)",
             "CAST(x AS DECIMAL(5,2))", "CAST(x AS DECIMAL(38,10))", "CAST(x AS STRING)", "CAST(x AS BOOLEAN)",
             "CAST(y AS DECIMAL(10,1))", "try_cast(x AS DECIMAL(5,2))", "try_cast(x AS INT)",
             "100.00 * x / y", "x * (1 - y)", "x / 3", "x / 7.0", "x + 1", "x * 1.5")  # fmt: skip
    left, right = f"decimal({p1},{s1})", f"decimal({p2},{s2})"
    columns = (("x", left, decimal_values(p1, s1)), ("y", right, decimal_values(p2, s2)))
    return Group(f"{left} {right}", columns, cases)



TEXTS = (
    None, "", " ", "a", "abc", "ABC", "aBc dEf", "héllo", "日本語", "😀x", "a%b", "a_b", "a\\b", "  pad  ", "\t x \n",
    "straße", "ΑΣ", "İi", "ﬁ", "e\u0301a", "abcabc", "a,b,,c", "it's", "a\nb", "x" * 40, "a b  c",
)  # fmt: skip

TEXT_CASES = (
    "upper(s)", "lower(s)", "initcap(s)", "length(s)", "octet_length(s)", "bit_length(s)", "char_length(s)", "reverse(s)", "ascii(s)",
    "s || t", "concat(s, '-', t)", "concat_ws(',', s, t, 'z')", "concat_ws(s, t, 'z', t)", "trim(s)", "ltrim(s)", "rtrim(s)",
    "btrim(s, 'ab ')", "trim(LEADING 'a' FROM s)", "trim(TRAILING 'c' FROM s)", "trim(BOTH t FROM s)",
    "replace(s, 'b', 'xx')", "replace(s, t, '*')", "replace(s, 'a')", "instr(s, 'b')", "instr(s, t)", "locate('b', s)",
    "locate(t, s, 2)", "locate('b', s, 3)", "position(t IN s)", "lpad(s, 5, 'xy')", "rpad(s, 5, 'é')", "lpad(s, 2)", "rpad(s, 5, t)",
    "left(s, 2)", "right(s, 2)", "right(s, 0)", "repeat(s, 2)", "space(2) || s", "translate(s, 'abc', 'xy')", "translate(s, t, 'xyz')",
    "substring_index(s, 'b', 1)", "substring_index(s, ',', -2)", "substring_index(s, 'ab', 2)", "split_part(s, ',', 2)",
    "split_part(s, t, -1)", "md5(s)", "sha1(s)", "sha2(s, 256)", "hex(s)", "unhex(s)", "encode(s, 'UTF-8')", "decode(encode(s, 'utf-8'), 'utf-8')",
    "s LIKE 'a%'", "s LIKE '%b%'", "s LIKE '%c'", "s LIKE 'a_c'", "s LIKE '_'", "s LIKE 'a\\%b'", "s LIKE 'a%c%'", "s NOT LIKE '%b_'",
    "s LIKE 'a/%b' ESCAPE '/'", "s LIKE t", "s ILIKE 'A%'", "s LIKE ALL ('a%', '%c%')", "s LIKE ANY ('a_b', '日%', '%x')", "s NOT LIKE ALL ('a%', '_')",
    "startswith(s, 'a')", "endswith(s, t)", "contains(s, t)", "s = t", "s < t", "s <=> t", "s >= 'a'", "s IN ('a', 'abc', t)",
    "greatest(s, t)", "least(s, t, 'b')", "coalesce(s, t)", "nullif(s, t)", "s BETWEEN 'a' AND 'b'",
    "s RLIKE '^a.*c$'", "s RLIKE '[0-9]|b+'", "s RLIKE '\\\\s'", "s RLIKE '^.$'", "s RLIKE 'a.b'",
    "regexp_extract(s, '([a-c])(.)', 2)", "regexp_extract(s, 'b(c)?', 1)", "regexp_replace(s, '[ab]+', '<$0>')", "regexp_replace(s, '(.)b', '$1-')",
    "CAST(s AS BINARY)", "CAST(CAST(s AS BINARY) AS STRING)", "if(s = 'a', s, t)", "s IS NULL OR t = ''",
)  # fmt: skip

NUMBERS_IN_TEXT = (
    None, "", " ", "0", "1", "-1", "+7", " 42 ", "\t9\n", "127", "128", "-129", "32768", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "1.0", "1.5", "-2.5", ".5", "5.", ".", "1e3", "1E-3", "1.5e2", "1e400", "-1e400", "1e-400", "1d", "1.5f", "0x10", "1_000",
    "NaN", "nan", "inf", "-Infinity", "+INF", "infinit", "abc", "1 2", "--1", "+", "12345678901234567890123456789012345678901", "0.00000000000000001e17",
    "99.995", "-99.995", "1e37", "1e38", "true", "F", " yes ", "No", "t", "on", "y", "0.1", "123456789.123456789", "１",
)  # fmt: skip
NUMBER_READINGS = tuple(
    f"{cast}(s AS {type_})"
    for cast in ("CAST", "try_cast")
    for type_ in ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,0)", "DECIMAL(38,18)")
)  # fmt: skip

TIMES_IN_TEXT = (
    None, "", "2020", "2020-1", "2020-01-02", "2020-1-2", " 2020-01-02 ", "2020-01-02T", "2020-01-02 junk", "2020-01-02Tjunk", "2020-13-01",
    "2020-02-30", "2019-02-29", "2020-02-29", "0001-01-01", "0000-01-01", "-0001-01-01", "+2020-01-01", "10000-01-01", "99999-12-31", "999-01-01", "20-01-01", "2020/01/02",
    "2020-01-02 10", "2020-01-02 10:11", "2020-01-02 10:11:12", "2020-01-02T10:11:12.1", "2020-01-02 10:11:12.123456789", "2020-01-02 1:2:3",
    "2020-01-02 24:00:00", "2020-01-02 10:60:00", "2020-01-02 10:11:12Z", "2020-01-02 10:11:12 UTC", "2020-01-02 10:11:12+01:00",
    "2020-01-02 10:11:12-8:30", "2020-01-02 10:11:12.5+5", "2020-01-02 10:11:12GMT+3", "2020-01-02 10:11:12+19:00", "2020-01-02 10:11:12+18:00",
    "1969-12-31 23:59:59.999999", "2020-01-02 10:11:12.", "2020-01-02 10:", "2020-01-02 10:11:12 +01:00", "2020-01", "2020-01-", "2020-001-01", "2020-01-02 10:11:12+1:5",
    "2020-01-02 10:11:12+0530", "2020-01-02 10:11:12UTC+01", "1500-06-15", "epoch", "now", "2020-01-02 10:11Z", "2020-01-02 10Z", "T", "20200102",
)  # fmt: skip
TIME_READINGS = tuple(f"{c}(s AS {t})" for c in ("CAST", "try_cast") for t in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"))

PATTERNED = (
    None, "", "2020/01/02", "2020/1/2", "+12020/01/02", "12020/01/02", "0000/01/01", "0001/01/01", "2020/01/02 ", "2020/02/30", "2020/13/01", "20200102", "12:30", "24:00", "23:60",
    "2020-01-02 10:11:12.5", "2020-01-02 10:11:12.123", "2020-01-02 10:11:12.1234", "2020-01-02 10:11:12.", "2020-01-02T10:11:12", "2020-01-02 10:11:12", "-2020/01/02",
)  # fmt: skip
PATTERN_READINGS = (
    "to_date(s, 'yyyy/MM/dd')", "to_timestamp(s, 'yyyy/MM/dd')", "try_to_timestamp(s, 'yyyy/MM/dd')", "unix_timestamp(s, 'yyyy/MM/dd')", "to_date(s, 'yyyyMMdd')",
    "to_timestamp(s, 'HH:mm')", "to_timestamp(s, 'yyyy-MM-dd HH:mm:ss.SSS')", "to_timestamp(s, \"yyyy-MM-dd'T'HH:mm:ss\")", "to_timestamp(s, 'yyyy-MM-dd HH:mm:ss')", "unix_timestamp(s)",
)  # fmt: skip

DAYS = (None, 0, 1, -1, -719163, -719528, -800000, 2932897, 4000000, 11016, 18321, 18262, 18293, 19782, 17896, -719162, 2932896, -141428, 20088, 19723, 18627, 16800, -25509)
DATE_CASES = (
    "year(d)", "quarter(d)", "month(d)", "day(d)", "dayofmonth(d)", "dayofweek(d)", "weekday(d)", "dayofyear(d)", "weekofyear(d)",
    "extract(YEAROFWEEK FROM d)", "extract(WEEK FROM d)", "date_part('dow', d)", "date_add(d, 3)", "date_sub(d, 40)", "d + 1", "d - 1",
    "datediff(d, e)", "date_diff(e, d)", "d - e > INTERVAL '10' DAY", "add_months(d, 1)", "add_months(d, -13)", "last_day(d)",
    "next_day(d, 'MO')", "next_day(d, 'sun')", "trunc(d, 'YEAR')", "trunc(d, 'quarter')", "trunc(d, 'MM')", "trunc(d, 'week')", "trunc(d, 'foo')",
    "d + INTERVAL '1' MONTH", "d - INTERVAL '2' YEAR", "d + INTERVAL '3' DAY", "d + INTERVAL '3' HOUR", "months_between(d, e)",
    "d = e", "d < e", "d <=> e", "greatest(d, e)", "d BETWEEN DATE'1999-01-01' AND e", "d IN (DATE'2020-02-29', e)", "CAST(d AS STRING)",
    "CAST(d AS TIMESTAMP)", "CAST(d AS TIMESTAMP_NTZ)", "unix_date(d)", "date_from_unix_date(dayofyear(d))", "date_format(d, 'yyyy-MM-dd')",
    "date_format(d, 'E dd MMM y')", "make_date(year(d), month(d), 28)", "make_date(year(d), 2, day(d))", "date_trunc('month', d)",
    "timestampdiff(MONTH, d, e)", "timestampdiff(DAY, d, e)", "timestampadd(QUARTER, 1, d)", "to_date(CAST(d AS STRING))",
)  # fmt: skip

MICROS = (
    None, -70_000_000_000_000_001, 300_000_000_000_000_000, 0, 1, -1, -1_500_000, 1_577_934_672_123_456, 1_582_934_400_000_000, 951_782_399_999_999, -62_135_596_800_000_000, 253_402_300_799_999_999,
    -12_219_292_800_000_001, 1_706_698_799_999_999, 1_709_164_800_000_000, 86_399_999_999,
)  # fmt: skip
TIME_CASES = (
    "year(x)", "month(x)", "day(x)", "hour(x)", "minute(x)", "second(x)", "extract(SECOND FROM x)", "dayofweek(x)", "weekofyear(x)",
    "CAST(x AS DATE)", "CAST(x AS STRING)", "date_trunc('YEAR', x)", "date_trunc('quarter', x)", "date_trunc('MON', x)", "date_trunc('week', x)",
    "date_trunc('DD', x)", "date_trunc('hour', x)", "date_trunc('minute', x)", "date_trunc('second', x)", "date_trunc('millisecond', x)",
    "date_trunc('microsecond', x)", "date_trunc('foo', x)", "x + INTERVAL '1' DAY", "x - INTERVAL '36:30' HOUR TO MINUTE", "x + INTERVAL '1' MONTH",
    "x + INTERVAL '1-2' YEAR TO MONTH", "x - y > INTERVAL '5' DAY", "x = y", "x < y", "x <=> y", "least(x, y)", "datediff(x, y)",
    "timestampdiff(MONTH, x, y)", "timestampdiff(YEAR, x, y)", "timestampdiff(QUARTER, x, y)", "timestampdiff(HOUR, x, y)", "timestampdiff(WEEK, x, y)",
    "timestampdiff(SECOND, x, y)", "timestampadd(HOUR, 5, x)", "timestampadd(MONTH, -1, x)", "timestampadd(WEEK, 1, x)", "timestampadd(MILLISECOND, 7, x)",
    "date_format(x, 'yyyy-MM-dd HH:mm:ss.SSS')", "date_format(x, 'd/M/yy h:m:s a')", "date_format(x, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")",
    "date_format(x, 'EEEE, dd MMMM yyyy')", "date_format(x, 'D H')", "last_day(x)", "add_months(x, 1)",
)  # fmt: skip
ZONED_CASES = (
    "CAST(x AS BIGINT)", "CAST(x AS INT)", "CAST(x AS DOUBLE)", "CAST(x AS DECIMAL(20,6))", "CAST(x AS TIMESTAMP_NTZ)", "unix_timestamp(x)", "unix_seconds(x)",
    "unix_millis(x)", "unix_micros(x)", "months_between(x, y)", "months_between(x, y, false)", "from_unixtime(unix_timestamp(x))",
    "from_unixtime(unix_seconds(x), 'yyyy/MM/dd')", "timestamp_micros(unix_micros(x))", "timestamp_millis(unix_millis(x))", "timestamp_seconds(unix_seconds(x))",
)  # fmt: skip

ROUNDING = tuple(f"{f}(x, {n})" for f in ("round", "bround") for n in (0, 1, 2, 3)) + ("round(x)", "floor(x)", "ceil(x)")
BITS = (
    "x & y", "x | y", "x ^ y", "~x", "bit_count(x)", "hex(x)", "round(x, -1)", "bround(x, -1)", "round(x, -2)", "round(x, 2)", "floor(x)", "ceil(x)",
    "chr(x)", "sign(x)", "substring('héllo wörld', x, y)", "repeat('ab', x % 5)", "lpad('abc', x % 7, '*')", "date_add(DATE'2020-01-01', x % 1000)",
)  # fmt: skip
SHIFTS = ("shiftleft(x, y)", "shiftright(x, y)", "shiftrightunsigned(x, y)", "x << 3", "x >> 33", "x >>> 1", "add_months(DATE'2020-01-31', x % 100)",
          "make_date(2020, x, 1)", "space(x % 9)", "left('héllo', x % 9)", "right('héllo', x % 9)")  # fmt: skip
FLOAT_MATHS = ("isnan(x)", "nanvl(x, y)", "sign(x)", "sqrt(x)", "rint(x)", "x <> x", "atan2(x, y) IS NULL", "ln(x) IS NULL", "log10(x) IS NULL",
               "log2(x) IS NULL", "log(x, y) IS NULL", "isnan(pow(x, y))", "isnan(exp(x))", "isnan(asin(x))", "isnan(sin(x))", *ROUNDING)  # fmt: skip


def rounding(p: int, s: int) -> Group:
    cases = (*ROUNDING, "round(x, -1)", "bround(x, -2)", "round(x, -5)", "ceil(x, 1)", "floor(x, 1)", "floor(x, -1)", "sign(x)")
    return Group(f"rounding decimal({p},{s})", (("x", f"decimal({p},{s})", decimal_values(p, s)),), cases)


BOOLEANS = (None, True, False)
BOOLEAN_CASES = (
    "x AND y", "x OR y", "NOT x", "x = y", "x <=> y", "x < y", "CAST(x AS INT)", "CAST(x AS DOUBLE)", "CAST(x AS STRING)", "CAST(x AS DECIMAL(3,1))",
    "greatest(x, y)", "coalesce(x, y)", "if(x, 1, 2)", "CASE WHEN x THEN 'a' WHEN y THEN 'b' ELSE 'c' END", "x IS TRUE", "x IS NOT FALSE", "x IN (true, y)",
    "x AND 1 / CAST(y AS INT) > 0", "x OR 1 / CAST(y AS INT) > 0", "(x OR y) AND 1 / CAST(y AS INT) > 0 AND x", "bit_count(x)",
)  # fmt: skip
BYTES = (None, b"", b"a", b"\x00\xff", b"abc", "é".encode(), bytes(range(100)))
BYTES_CASES = ("x = y", "x < y", "x || y", "length(x)", "octet_length(x)", "hex(x)", "md5(x)", "sha2(x, 0)", "x IN (y)", "base64(x)")

GROUPS: tuple[Group, ...] = (
    both("tinyint", integers(8), *INTEGER_CASES, *BITS),
    both("smallint", integers(16), *INTEGER_CASES),
    both("int", integers(32), *INTEGER_CASES, *BITS, *SHIFTS),
    both("bigint", integers(64), *INTEGER_CASES),
    Group("bigint bits", (("x", "bigint", integers(64)), ("y", "int", integers(32))), ("shiftleft(x, y)", "shiftright(x, y)", "shiftrightunsigned(x, y)", "bit_count(x)", "hex(x)", "~x", "round(x, -3)", "bround(x, -18)", "chr(x)", "x & y")),
    both("double", DOUBLES, *FLOAT_CASES, *FLOAT_MATHS),
    both("float", FLOATS, *FLOAT_CASES, *FLOAT_MATHS),
    *(decimals(*d) for d in ((12, 2, 12, 2), (15, 2, 4, 2), (18, 6, 18, 6), (38, 18, 38, 18), (38, 0, 38, 0), (38, 10, 38, 2),
                             (38, 37, 38, 38), (20, 0, 10, 9), (36, 4, 36, 4), (5, 5, 3, 0))),
    *(rounding(*d) for d in ((12, 2), (38, 18), (38, 0), (5, 5), (18, 3))),
    both("boolean", BOOLEANS, *BOOLEAN_CASES),
    both("binary", BYTES, *BYTES_CASES),
    Group("text", (("s", "string", TEXTS), ("t", "string", (None, "", "a", "b", "abc", "é", "%", "\\a", ","))), TEXT_CASES),
    Group("substrings", (("s", "string", ("", "abc", "héllo", None)), ("i", "int", (None, 0, 1, 2, 9, -1, -2, -9, 2147483647, -2147483648)), ("n", "int", (None, 0, 1, 3, -1, 2147483647, -2147483648))),
          ("substring(s, i, n)", "substring(s, i)", "substr(s, 2, 2)", "substring(s, -2)", "substring(s, 0, 2)", "left(s, n)", "locate('l', s, i)", "lpad(s, i % 10, 'xy')")),
    Group("numbers in text", (("s", "string", NUMBERS_IN_TEXT),), NUMBER_READINGS),
    Group("times in text", (("s", "string", TIMES_IN_TEXT),), TIME_READINGS),
    Group("dates by pattern", (("s", "string", PATTERNED),), PATTERN_READINGS),
    Group("arrays", (("s", "string", (None, "", "a", "a,b", "a,b,,c,", ",", "a;b,c")), ("i", "int", (None, 0, 1, 2, 3, -1, 9))),
          ("split(s, ',')[i]", "split(s, ',')[0]", "size(split(s, ','))", "element_at(split(s, '[,;]'), i)", "split_part(s, ',', i)", "split(s, '[,;]')[1]")),
    Group("date", (("d", "date", DAYS), ("e", "date", (None, 0, 18321, 18293, -719162, 19782))), DATE_CASES),
    Group("timestamp", (("x", "timestamp", MICROS), ("y", "timestamp", MICROS)), (*TIME_CASES, *ZONED_CASES)),
    Group("timestamp_ntz", (("x", "timestamp_ntz", MICROS), ("y", "timestamp_ntz", MICROS)), TIME_CASES),
)  # fmt: skip


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
def test_same_as_spark(spark: SparkSession, group: Group) -> None:
    assert differences(group, read(spark, group), evaluate(spark, group)) == []
