"""TableImage: a base table arranged by plain columns. Arranged by the primary key, it is the table's image.

It holds every column that any view looks up in it, so views share it by (table, key) whatever they select; one image of
a table holds all used columns, for later loads. For stores without before-images it also provides the old rows of
changed keys (`negated_image_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.operators.chunked_execution import arrange_input
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.key_hash import hash_keys, hash_sql
from viewkeeper.state.run import Arrangement


@dataclass(frozen=True)
class TableImage(Operator):
    """State: the table's rows, by the hash of the key."""

    table: int
    key: tuple[str, ...]
    kind: ClassVar[str] = "table_image"
    stateful: ClassVar[bool] = True
    is_arrangement: ClassVar[bool] = True

    @property
    def slot_count(self) -> int:
        return 1

    @property
    def arranged_table(self) -> int:
        return self.table

    @property
    def arrangement_key(self) -> tuple[str, ...]:
        return self.key

    @property
    def upstream_ids(self) -> tuple[str, ...]:
        return (Input(self.table).id,)

    def build_table_delta(
        self, statements: PreparedStatements, columns: Sequence[Column], changes: pa.Table
    ) -> pa.Table:
        rows = changes.select([*(c.name for c in columns), WEIGHT])
        return rows.append_column(HASH, pa.array(hash_keys(statements, changes, self.key)))

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        return arrange_input(context, self, ports)

    def describe(self, context: ExplainContext) -> str:
        return f"{self._describe_form(context)} of {context.names[self.table]} by ({', '.join(self.key)})"

    def reason(self, context: ExplainContext) -> str:
        return f"holds {', '.join(c.name for c in context.dataflow.image_columns[self.id])}"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        name = context.names[self.table]
        return OperatorDescription(f"{self._describe_form(context)} of {name}", table=name, key=self.key)

    def lineage(self, column_name: str) -> tuple[str, Expr]:
        return Input(self.table).id, column(column_name, types.VOID)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {}  # the columns have the table's names

    def _describe_form(self, context: ExplainContext) -> str:
        primary = tuple(k.column for k in context.dataflow.tables[self.table].key)
        return "table image" if self.key == primary else "arrangement"


@dataclass(frozen=True)
class FilteredTableImage(TableImage):
    """A table image with only the rows that pass comparisons which every view that reads the table makes."""

    where: tuple[Expr, ...]

    def build_table_delta(
        self, statements: PreparedStatements, columns: Sequence[Column], changes: pa.Table
    ) -> pa.Table:
        chosen = statements.run(f"SELECT {where_sql(self.where)} AS chosen FROM input", input=changes)
        return super().build_table_delta(statements, columns, changes).filter(chosen["chosen"])

    def describe(self, context: ExplainContext) -> str:
        return f"{super().describe(context)}, rows with {' and '.join(map(expr_text, self.where))}"


def negated_image_rows(
    statements: PreparedStatements, image: Arrangement, table: Table, columns: Sequence[str], keys: pa.Table | None
) -> pa.Table:
    """Return the delta that deletes the rows which an image by the table's key has for these keys (None: for all
    keys)."""
    empty = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())]).empty_table()
    if keys is None:
        return _negate_weights(image.rows(list(columns)), columns) if image.runs else empty
    names = tuple(c.name for c in table.key_columns)
    hashes = statements.run(f"SELECT {hash_sql(names)} AS {HASH} FROM input", input=keys.select(list(names)))
    key_indexes, rows = image.probe(hashes[HASH].to_numpy(), [*dict.fromkeys([*columns, *names])])
    if not len(key_indexes):
        return empty
    # Hashes may collide: only rows with an equal key are deleted.
    has_equal_key = pc.equal(encode_keys(table, rows), encode_keys(table, keys).take(pa.array(key_indexes)))
    return _negate_weights(rows.filter(has_equal_key), columns)


def _negate_weights(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select(list(columns)).append_column(WEIGHT, pc.negate(rows[WEIGHT]))
