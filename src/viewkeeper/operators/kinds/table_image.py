"""Image: a base table arranged by plain columns. By its primary key it is the table image.

It holds every column that any view looks up in it, so it is shared by (table, key) whatever the views select; one image
of a table holds all that is used, for later loads (`Flow.held`). For stores that have no before-images it is also the
memory of what rows were (`taken_back`).
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
from viewkeeper.operators.chunked_execution import arranged
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.key_hash import hash_sql, hashes
from viewkeeper.state.run import Arrangement


@dataclass(frozen=True)
class Image(Operator):
    """State: the table's rows, by the hash of the key."""

    table: int
    key: tuple[str, ...]
    kind: ClassVar[str] = "image"
    stateful: ClassVar[bool] = True
    is_arrangement: ClassVar[bool] = True

    @property
    def slots(self) -> int:
        return 1

    @property
    def arranges(self) -> int:
        return self.table

    @property
    def arranged_by(self) -> tuple[str, ...]:
        return self.key

    @property
    def fed_by(self) -> tuple[str, ...]:
        return (Input(self.table).id,)

    def of_table(self, duck: Duck, columns: Sequence[Column], changes: pa.Table) -> pa.Table:
        rows = changes.select([*(c.name for c in columns), WEIGHT])
        return rows.append_column(HASH, pa.array(hashes(duck, changes, self.key)))

    def run(self, site: Site, ports: Ports) -> Iterable[pa.Table]:
        return arranged(site, self, ports)

    def describe(self, told: Told) -> str:
        return f"{self._called(told)} of {told.names[self.table]} by ({', '.join(self.key)})"

    def reason(self, told: Told) -> str:
        return f"holds {', '.join(c.name for c in told.flow.held[self.id])}"

    def drawn(self, told: Told) -> Drawn:
        name = told.names[self.table]
        return Drawn(f"{self._called(told)} of {name}", table=name, key=self.key)

    def made_of(self, name: str) -> tuple[str, Expr]:
        return Input(self.table).id, column(name, types.VOID)

    def traced(self, text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {}  # the columns have the table's names

    def _called(self, told: Told) -> str:
        primary = tuple(k.column for k in told.flow.tables[self.table].key)
        return "table image" if self.key == primary else "arrangement"


@dataclass(frozen=True)
class SelectedImage(Image):
    """The table image where every view that reads the table makes the same comparisons: only rows that pass them."""

    where: tuple[Expr, ...]

    def of_table(self, duck: Duck, columns: Sequence[Column], changes: pa.Table) -> pa.Table:
        chosen = duck.run(f"SELECT {where_sql(self.where)} AS chosen FROM input", input=changes)
        return super().of_table(duck, columns, changes).filter(chosen["chosen"])

    def describe(self, told: Told) -> str:
        return f"{super().describe(told)}, rows with {' and '.join(map(expr_text, self.where))}"


def taken_back(duck: Duck, image: Arrangement, table: Table, columns: Sequence[str], keys: pa.Table | None) -> pa.Table:
    """The delta that takes away what the image, arranged by the table's key, holds for these keys; None: all of it."""
    none = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())]).empty_table()
    if keys is None:
        return _negated(image.rows(list(columns)), columns) if image.runs else none
    names = tuple(c.name for c in table.key_columns)
    hashes = duck.run(f"SELECT {hash_sql(names)} AS {HASH} FROM input", input=keys.select(list(names)))
    asked, rows = image.probe(hashes[HASH].to_numpy(), [*dict.fromkeys([*columns, *names])])
    if not len(asked):
        return none
    # Hashes collide: only rows with the very key count.
    same = pc.equal(encode_keys(table, rows), encode_keys(table, keys).take(pa.array(asked)))
    return _negated(rows.filter(same), columns)


def _negated(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select(list(columns)).append_column(WEIGHT, pc.negate(rows[WEIGHT]))
