"""A materialized view in the catalog: its table, its query, its plan and its cut.

The special kinds of a view are separate values: an index, a cluster, a synchronous view, a family of views, a member of
a family. A view's record leaves out the kinds that do not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from viewkeeper.model.catalog.synchronous_state import SynchronousState
from viewkeeper.model.schema import Table

# An index: a view whose query Viewkeeper defines.


@dataclass(frozen=True)
class IndexDefinition:
    """The content of an index: the rows of a table or view in another order.

    `columns` lists, for each column of the index in order, the internal name of the column of `table_id` that it holds.
    The first `key_count` of them are the indexed columns; the rest are the columns that identify the row, and the
    included ones.
    """

    table_id: int
    columns: tuple[str, ...]
    key_count: int
    included_count: int = 0

    def to_json(self) -> list[Any]:
        return [self.table_id, list(self.columns), self.key_count, self.included_count]

    @staticmethod
    def from_json(data: list[Any]) -> IndexDefinition:
        table, columns, key_count, included_count = data
        return IndexDefinition(table, tuple(columns), key_count, included_count)


# A clustered view: the rows of several tables that share a key, next to each other.
#
# key of the view    the shared columns | SOURCE_COLUMN: the row's table | the rest of each table's own key
# columns            the shared ones, SOURCE_COLUMN, then each table's other columns, NULL in the rows of other tables


SOURCE_COLUMN = "part"
"""The column that identifies the table of a row by its index in the list, from 0."""


@dataclass(frozen=True)
class ClusterDefinition:
    """The definition of a clustered view. `tables` has the tables' names as the statement wrote them; `columns` has for
    each table (column name, column name in the view)."""

    key_columns: tuple[str, ...]
    tables: tuple[str, ...]
    columns: tuple[tuple[tuple[str, str], ...], ...]

    def to_json(self) -> list[Any]:
        return [list(self.key_columns), list(self.tables), [[list(pair) for pair in pairs] for pairs in self.columns]]

    @staticmethod
    def from_json(data: list[Any]) -> ClusterDefinition:
        key_columns, tables, columns = data
        return ClusterDefinition(
            tuple(key_columns), tuple(tables), tuple(tuple((a, b) for a, b in pairs) for pairs in columns)
        )

    def column_names(self, table: int) -> Mapping[str, str]:
        """Return the view's column name for each column of a table."""
        return dict(self.columns[table])


LOOKAHEAD = ("none", "local", "auto", "global")
"""How far lookups check whether a row can reach any exit (semijoin reduction), the least first."""
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
    """The cut of a view that is recomputed at intervals: its rows were read at positions `low` to `cut`."""

    epoch: int
    low: int
    cut: int
    time: float


@dataclass(frozen=True)
class TextNames:
    """The meaning of a table name in a view's text, for a table that was altered since: the table's id, and the columns
    that the text refers to, each with its first internal name."""

    table_id: int
    name: str
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> list[Any]:
        return [self.table_id, self.name, [list(pair) for pair in self.columns]]

    @staticmethod
    def from_json(data: Sequence[Any]) -> TextNames:
        table, name, columns = data
        return TextNames(table, name, tuple((shown, internal) for shown, internal in columns))


class StoredPlan(dict[str, Any]):
    """A compiled plan as JSON, with the values parsed from it (`plan.compile.compiled_view`): parsed once, reused."""

    __slots__ = ("compiled", "reads")

    compiled: Any
    reads: frozenset[int]


@dataclass(frozen=True)
class View:
    """A materialized view: its table, the query as written, and the compiled plan as JSON."""

    table: Table
    query: str
    plan: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    suspended: Suspension | None = None
    complete_since: int = 0
    """The log position from which its deltas are complete: the cut of its backfill."""
    own_cut: OwnCut | None = None
    """None: the view has the cut of the published batch."""
    parameter_table_id: int = 0
    """For a family: the id of its table of parameters."""
    parameter_count: int = 0
    """For a family: how many of its columns are parameters; they are the first ones."""
    family_query: str = ""
    """For a family: the query as written; `query` is its form over the table of parameters (`plan.families`)."""
    index: IndexDefinition | None = None
    """For an index: its definition."""
    cluster: ClusterDefinition | None = None
    """For a clustered view: its definition."""
    synchronous_state: SynchronousState | None = None
    """For a synchronous view: its base tables and state tables."""
    template: str = ""
    """Equal for views whose plans differ only in constants (`plan.families.plan_templates`)."""
    parameter_values: tuple[Any, ...] = ()
    """For a member of a family: its values of the parameters, in the form of a plan's literals."""
    text_names: tuple[TextNames, ...] = ()
    """The names in its text of tables that were altered since it was written (`syntax.view_text`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.plan, StoredPlan):
            object.__setattr__(self, "plan", StoredPlan(self.plan))

    @property
    def stored_plan(self) -> StoredPlan:
        return cast(StoredPlan, self.plan)

    @property
    def is_member(self) -> bool:
        """Whether the view was created by name and is a part of a family, which stores its rows."""
        return bool(self.table.family)

    @property
    def is_hidden_family(self) -> bool:
        """Whether the view is a family of views created by name, which users do not see."""
        return bool(self.parameter_table_id) and not self.family_query

    @property
    def is_shared(self) -> bool:
        """Whether operators may be shared with other views."""
        return self.options.get("share", "true").lower() != "false"

    @property
    def lookahead(self) -> str:
        """How far lookups check whether a row can reach any exit."""
        return self.options.get("lookahead", DEFAULT_LOOKAHEAD).lower()

    @property
    def reads(self) -> frozenset[int]:
        """The ids of the tables and views that the query names."""
        plan = self.stored_plan
        if not hasattr(plan, "reads"):
            plan.reads = frozenset(_scanned_table_ids(plan.get("root")))
        return plan.reads

    def is_copy_of(self, table: Table) -> bool:
        """Return whether the view's rows are exactly the rows of this table, column for column."""
        root = self.plan.get("root", {})
        if root.get("kind") != "scan" or root["table"] != table.id or self.table.is_bag:
            return False
        stored_names = {column["column"][0]: stored for column, stored in root["fields"]}
        names = [(name, stored_names.get(column)) for name, column, *_ in self.plan["output"]]
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
        kind = {name: definition.to_json() for name, definition in kinds.items() if definition is not None}
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
    """Yield the table ids of the scans in a plan's JSON."""
    if isinstance(data, list):
        for value in data:
            yield from _scanned_table_ids(value)
    elif isinstance(data, dict) and "expr" not in data:
        if data.get("kind") == "scan":
            yield data["table"]
        for value in data.values():
            yield from _scanned_table_ids(value)
