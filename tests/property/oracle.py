"""What each view must hold after each batch: Spark SQL's own answer, and DuckDB's where both mean the same.

The base tables come from the plain model (`changes`), never from the store. One Spark query gives a view after all
batches: the tables stand there once for each batch (`tab_0__2` is `tab_0` after batch 2) and the answers are one
UNION ALL with the batch's number in front, so 300 views cost 300 small Spark queries and not 1,200.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.plan.catalyst.session import create_own_session

from .changes import State, to_arrow
from .query import View
from .schemas import Table

SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Meaning first (ANSI, UTC); then what makes tiny queries quick."""


class SparkOracle:
    """A session with the tables of all batches, and with the views answered so far."""

    def __init__(self, spark: Any, tables: Sequence[Table], states: Sequence[State]) -> None:
        self.spark = create_own_session(spark, SETTINGS)
        self.batches = len(states)
        self.names: list[str] = []
        for table in tables:
            types = ", ".join(f"{c.name} {c.type}" for c in table.columns)
            self._register(table.name, [to_arrow(table, s[table.name].values()) for s in states], types)

    def answers(self, view: View) -> list[pa.Table]:
        """The view's rows after each batch, in no order."""
        parts = [f"SELECT {b} AS _batch, q.* FROM ({self._at(b, view.sql)}) q" for b in range(self.batches)]
        frame = self.spark.sql(" UNION ALL ".join(parts))
        found = frame.toArrow()
        numbers, rows = found.column(0), found.drop_columns(["_batch"])
        return [rows.filter(pc.equal(numbers, b)) for b in range(self.batches)]

    def define(self, view: View, answers: Sequence[pa.Table]) -> None:
        """Makes the view's answers a relation that later views may read."""
        types = {f.name: _spark_type(f.type) for f in answers[0].schema}
        self._register(view.name, answers, ", ".join(f"{n} {t}" for n, t in types.items()))

    def _register(self, name: str, versions: Sequence[pa.Table], types: str) -> None:
        for batch, rows in enumerate(versions):
            self.spark.createDataFrame(rows, types).createOrReplaceTempView(f"{name}__{batch}")
        self.names.append(name)

    def _at(self, batch: int, text: str) -> str:
        return re.sub(rf"\b({'|'.join(self.names)})\b", rf"\1__{batch}", text) if self.names else text


def duckdb_answer(tables: Sequence[Table], state: State, views: Sequence[View]) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of the portable views, by DuckDB from the same SQL text."""
    with duckdb.connect() as connection:
        for table in tables:
            connection.register(table.name, to_arrow(table, state[table.name].values()))
        found = {}
        for view in views:
            if not view.portable:
                continue
            found[view.name] = connection.sql(view.sql).fetchall()
        return found


def _spark_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    names = {pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int"}
    names |= {pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.date32(): "date"}
    return {pa.string(): "string", pa.binary(): "binary", **names}[type_]
