"""FamilyRows: the rows of a family's path joined with every member that needs them.

    Δ(D ⋈ P) = ΔD ⋈ Pⁿᵉʷ + Dᵒˡᵈ ⋈ ΔP

So a deleted member is joined with its old rows only, and a new row whose comparison with it would fail raises no error.
The condition may be any: DuckDB compares new rows with all members, and new members with all rows, so the cost of a
change follows the number of members. This kind is for results that are no sums (rows, min and max, distinct, windows);
where only sums are needed, `FamilyCells` computes them without these pairs.

Family operators have two ports, and state of each:

    port 0  rows of the family's path, the same for all members     ─▶ slot 0
    port 1  members, as rows of parameters                          ─▶ slot 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import combine_deltas
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment, where_sql
from viewkeeper.resources.memory import row_width
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, Run, arrange


@dataclass(frozen=True)
class FamilyOperator(Operator):
    """Base of the operators that join a family's rows with its members."""

    rows: tuple[Segment, ...]
    members: tuple[Segment, ...]
    stateful: ClassVar[bool] = True
    members_slot: ClassVar[int | None] = 1
    has_joint_ports: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.rows, self.members

    @property
    def slot_count(self) -> int:
        return 2

    def lineage(self, column_name: str) -> tuple[str, Expr] | None:
        for segment in (self.members[0], self.rows[0]):
            expr = next(((segment.source, n.expr) for n in segment.exprs if n.name == column_name), None)
            if expr is not None:
                return expr
        return None

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {n.name: expr_text(s.source, n.expr) for s in (self.rows[0], self.members[0]) for n in s.exprs}


@dataclass(frozen=True)
class FamilyRows(FamilyOperator):
    where: tuple[Expr, ...]
    kind: ClassVar[str] = "family_rows"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.rows[0].columns, *self.members[0].columns)

    @cached_property
    def sql(self) -> str:
        selected = ", ".join(quoted(c.name) for c in self.columns)
        condition = f" WHERE {where_sql(self.where)}" if self.where else ""
        return f"SELECT {selected}, CAST(d.{WEIGHT} * p.{WEIGHT} AS BIGINT) AS {WEIGHT} FROM d, p{condition}"

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        rows, members = context.state(self)
        new_rows, changed_members = (
            consolidate(context.statements, combine_deltas(tables)) if tables else None
            for tables in (ports[0], ports[1])
        )
        if new_rows is not None and (members.runs or changed_members is not None):
            parts = [members.rows(self._column_names(1))] if members.runs else []
            parts += [] if changed_members is None else [changed_members.select([*self._column_names(1), WEIGHT])]
            yield from self._join_members(context, new_rows, consolidate(context.statements, combine_deltas(parts)))
        if changed_members is not None:
            for run in rows.runs:
                yield from self._join_members(context, run.weighted_rows, changed_members)
        context.emit_runs(self, [_EMPTY_RUN if t is None else arrange(t) for t in (new_rows, changed_members)])

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        if not all(state.runs for state in states):
            kinds = [(c.name, types.arrow(c.type)) for c in self.columns]
            return pa.schema([*kinds, (WEIGHT, pa.int64())]).empty_table()
        rows, members = (state.rows(self._column_names(i)) for i, state in enumerate(states))
        return statements.run(self.sql, d=rows, p=members)

    def dry_run(self, statements: PreparedStatements) -> None:
        empty = [
            pa.schema([*((c.name, types.arrow(c.type)) for c in port[0].columns), (WEIGHT, pa.int64())]).empty_table()
            for port in self.ports
        ]
        statements.run(self.sql, d=empty[0], p=empty[1])

    def _join_members(self, context: ExecutionContext, rows: pa.Table, members: pa.Table) -> Iterator[pa.Table]:
        rows, members = rows.select([*self._column_names(0), WEIGHT]), members.select([*self._column_names(1), WEIGHT])
        if rows.num_rows and members.num_rows:
            yield from context.statements.stream(
                self.sql, context.memory.piece_rows(row_width(rows) + row_width(members)), d=rows, p=members
            )

    def _column_names(self, port: int) -> list[str]:
        return [c.name for c in self.ports[port][0].columns]

    def describe(self, context: ExplainContext) -> str:
        return f"rows of a family's members, by ({', '.join(self._column_names(1))})"

    def reason(self, context: ExplainContext) -> str:
        return "more than sums is wanted of the rows: each is given to every member that wants it"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        return OperatorDescription(
            "rows of members", key=tuple(context.describe_output(self.members[0], n) for n in self._column_names(1))
        )


_EMPTY_RUN = Run(pa.schema([(HASH, pa.uint64())]).empty_table())
