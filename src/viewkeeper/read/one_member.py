"""A family as if it had one member: what its operators are given, and what comes of it, restricted to that member.

    family(D, P)  =  Σ over members p:  family(D, {p})

The family is linear in its members, so the rows of one are those that the same operators give over its parameters
alone. It costs what the changed rows cost, however many other members there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.maintain.gathering import rows_of
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.schema import Table
from viewkeeper.model.views import View
from viewkeeper.operators.arrangement import Arrangement, Run
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.operator import slots
from viewkeeper.plan.flow import Flow
from viewkeeper.store.terms import ViewChange

State = Callable[[str], Arrangement]


@dataclass(frozen=True)
class One:
    """A member: its table, and the parameters it has, as a row of their table."""

    table: Table
    parameters: Table
    row: pa.Table

    @staticmethod
    def of(catalog: Catalog, member: View) -> One:
        parameters = catalog.tables_by_id[catalog.keeper(member).parameters]
        return One(member.table, parameters, rows_of(parameters, [member]))

    def state(self, flow: Flow, active: frozenset[str], state: State) -> State:
        """The state of operators that make members' rows, with this one for all of them."""
        operators = map(flow.operators.__getitem__, active)
        found = {slots(o)[o.members_slot] for o in operators if o.members_slot is not None}

        def restricted(slot: str) -> Arrangement:
            whole = state(slot)
            if slot not in found:
                return whole
            return Arrangement(tuple(Run(self._own(run.rows, [f"p{i}" for i in self._places])) for run in whole.runs))

        return restricted

    def changes(self, given: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Changes of tables, those of parameters being of this member's only."""
        name, names = Input(self.parameters.id).id, [k.column for k in self.parameters.key]
        return {source: self._own(rows, names) if source == name else rows for source, rows in given.items()}

    def part(self, change: ViewChange) -> ViewChange:
        """What of a family's change is this member's, as its own table has it."""
        parts = []
        for rows, columns in (
            (change.puts, [f.name for f in self.table.arrow]),
            (change.deletes, [k.column for k in self.table.key]),
        ):
            keys = encode_keys(change.table, rows)
            mine = pc.starts_with(keys, self.table.prefix) if len(keys) else pa.array([], pa.bool_())
            parts.append(rows.filter(mine).select(columns))
        return ViewChange(self.table, *parts)

    @property
    def _places(self) -> range:
        return range(self.row.num_columns)

    def _own(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Rows with these values in these columns; there may be some of members that compare equal."""
        for place, name in zip(self._places, names, strict=True):
            rows = rows.filter(pc.equal(rows.column(name), self.row.column(place)[0]))
        return rows
