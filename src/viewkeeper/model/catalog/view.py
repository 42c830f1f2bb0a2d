"""A materialized view as the catalog has it: where its rows are, its query, its plan, and where it stands.

What a view is beside a query is a value of its own: an index, a cluster, a part of a table's writes, a family of views,
a member of one. A record of a view leaves out what it is not, so older ones are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from viewkeeper.model.catalog.synchronous_state import SynchronousState
from viewkeeper.model.schema import Table

# An index: a view of which users ask nothing but that it is there.


@dataclass(frozen=True)
class IndexDefinition:
    """What an index holds: the rows of a table or view in another order.

    `columns`: for each column of the index, in their order, the column of `on` that it holds, by its name inside. The
    first `keys` of them are what it was made for; the others are what names the row, and what it includes.
    """

    table_id: int
    columns: tuple[str, ...]
    key_count: int
    included_count: int = 0

    def to_json(self) -> list[Any]:
        return [self.table_id, list(self.columns), self.key_count, self.included_count]

    @staticmethod
    def from_json(data: list[Any]) -> IndexDefinition:
        on, columns, keys, included = data
        return IndexDefinition(on, tuple(columns), keys, included)


# A clustered view: the rows of several tables that share a key, next to each other.
#
# key of the view    the shared columns | PART: whose row it is | the rest of each table's own key
# columns            the shared ones, PART, then every other column of each table, NULL in the rows of the others


SOURCE_COLUMN = "part"
"""The column that says of which table a row is: its place in the list, from 0."""


@dataclass(frozen=True)
class ClusterDefinition:
    """`of`: the tables, by name as they were named; `columns`: for each its columns, by name, and what each is called
    in the view."""

    key_columns: tuple[str, ...]
    tables: tuple[str, ...]
    columns: tuple[tuple[tuple[str, str], ...], ...]

    def to_json(self) -> list[Any]:
        return [list(self.key_columns), list(self.tables), [[list(pair) for pair in pairs] for pairs in self.columns]]

    @staticmethod
    def from_json(data: list[Any]) -> ClusterDefinition:
        by, of, columns = data
        return ClusterDefinition(tuple(by), tuple(of), tuple(tuple((a, b) for a, b in pairs) for pairs in columns))

    def column_names(self, table: int) -> Mapping[str, str]:
        """What a table's columns are called in the view."""
        return dict(self.columns[table])


LOOKAHEAD = ("none", "local", "auto", "global")
"""How far lookups see whether a row leads anywhere, the least first."""
DEFAULT_LOOKAHEAD = "auto"


@dataclass(frozen=True)
class Suspension:
    """Why a view is not maintained, and the batch whose state it shows."""

    reason: str
    epoch: int
    cut: int
    time: float


@dataclass(frozen=True)
class OwnCut:
    """Where a view stands that is made anew at intervals: its rows were read at positions `low` to `cut`."""

    epoch: int
    low: int
    cut: int
    time: float


@dataclass(frozen=True)
class TextNames:
    """What the text of a view means by the name of a table, where the table has other names or columns by now: the
    table's id, and the columns that it had for the text, each with its first name inside."""

    table_id: int
    name: str
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> list[Any]:
        return [self.table_id, self.name, [list(pair) for pair in self.columns]]

    @staticmethod
    def from_json(data: Sequence[Any]) -> TextNames:
        table, name, columns = data
        return TextNames(table, name, tuple((shown, inside) for shown, inside in columns))


class StoredPlan(dict[str, Any]):
    """A compiled plan as JSON, with what was read from it (`plan.compiler.plan_of`): read once, however often used."""

    __slots__ = ("compiled", "reads")

    compiled: Any
    reads: frozenset[int]


@dataclass(frozen=True)
class View:
    """A materialized view: the table it lives in, the query as written, and its compiled plan as JSON."""

    table: Table
    query: str
    plan: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    suspended: Suspension | None = None
    complete_since: int = 0
    """The log position from which on its deltas are complete: where it was loaded."""
    own_cut: OwnCut | None = None
    """None: it stands where the published batch stands."""
    parameter_table_id: int = 0
    """Of a family, the table of its parameters."""
    parameter_count: int = 0
    """Of a family, how many of its columns are parameters: the first ones."""
    family_query: str = ""
    """Of a family, the query as written; `query` is what it means over the table of parameters (`plan.families`)."""
    index: IndexDefinition | None = None
    """Of what it is an index, if it is one."""
    cluster: ClusterDefinition | None = None
    """Which tables it keeps next to each other, if it is clustered."""
    synchronous_state: SynchronousState | None = None
    """Of which table's writes it is a part, if it is synchronous."""
    template: str = ""
    """The same for views whose plans differ in constants alone (`plan.families.membership`)."""
    parameter_values: tuple[Any, ...] = ()
    """Of a member of a family: what it has for the parameters, as plans keep literals."""
    text_names: tuple[TextNames, ...] = ()
    """What its text means by the names of tables that were altered since it was written (`plan.view_text`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.plan, StoredPlan):
            object.__setattr__(self, "plan", StoredPlan(self.plan))

    @property
    def stored_plan(self) -> StoredPlan:
        return cast(StoredPlan, self.plan)

    @property
    def is_member(self) -> bool:
        """Whether it was made by name and is kept by a family: its rows are a part of the family's."""
        return bool(self.table.family)

    @property
    def is_hidden_family(self) -> bool:
        """Whether it is a family of views that were made by name, which users do not see."""
        return bool(self.parameter_table_id) and not self.family_query

    @property
    def is_shared(self) -> bool:
        """Whether its work may be done together with that of other views."""
        return self.options.get("share", "true").lower() != "false"

    @property
    def lookahead(self) -> str:
        """How far its lookups see whether a row leads anywhere."""
        return self.options.get("lookahead", DEFAULT_LOOKAHEAD).lower()

    @property
    def reads(self) -> frozenset[int]:
        """The tables and views that its query names."""
        plan = self.stored_plan
        if not hasattr(plan, "reads"):
            plan.reads = frozenset(_scanned_table_ids(plan.get("root")))
        return plan.reads

    def is_copy_of(self, table: Table) -> bool:
        """Whether it is just this table's rows, column for column."""
        root = self.plan.get("root", {})
        if root.get("kind") != "scan" or root["table"] != table.id or self.table.is_bag:
            return False
        read = {column["column"][0]: stored for column, stored in root["fields"]}
        names = [(name, read.get(column)) for name, column, *_ in self.plan["output"]]
        return names == [(c.name, c.internal_name) for c in table.columns]

    def to_json(self) -> dict[str, Any]:
        data = {"table": self.table.to_json(), "query": self.query, "plan": self.plan, "options": dict(self.options)}
        suspended = None if self.suspended is None else asdict(self.suspended)
        at = None if self.own_cut is None else asdict(self.own_cut)
        family = (
            {"parameters": self.parameter_table_id, "given": self.parameter_count, "body": self.family_query}
            if self.parameter_table_id
            else {}
        )
        family |= {"template": self.template} if self.template else {}
        family |= {"values": list(self.parameter_values)} if self.parameter_values else {}
        family |= {"names": [n.to_json() for n in self.text_names]} if self.text_names else {}
        kinds = {"index": self.index, "cluster": self.cluster, "sync": self.synchronous_state}
        kind = {name: one.to_json() for name, one in kinds.items() if one is not None}
        return {**data, "suspended": suspended, "since": self.complete_since, "at": at, **family, **kind}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> View:
        suspended = Suspension(**data["suspended"]) if data.get("suspended") else None
        at = OwnCut(**data["at"]) if data.get("at") else None
        table = Table.from_json(data["table"])
        since, family = data.get("since", 0), (data.get("parameters", 0), data.get("given", 0), data.get("body", ""))
        index = IndexDefinition.from_json(data["index"]) if data.get("index") else None
        cluster = ClusterDefinition.from_json(data["cluster"]) if data.get("cluster") else None
        sync = SynchronousState.from_json(data["sync"]) if data.get("sync") else None
        kinds = (*family, index, cluster, sync, data.get("template", ""), tuple(data.get("values", ())))
        names = tuple(map(TextNames.from_json, data.get("names", ())))
        return View(table, data["query"], data["plan"], data["options"], suspended, since, at, *kinds, names)


def _scanned_table_ids(data: Any) -> Iterator[int]:
    """The tables of the scans in a plan's JSON."""
    if isinstance(data, list):
        for value in data:
            yield from _scanned_table_ids(value)
    elif isinstance(data, dict) and "expr" not in data:
        if data.get("kind") == "scan":
            yield data["table"]
        for value in data.values():
            yield from _scanned_table_ids(value)
