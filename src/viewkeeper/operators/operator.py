"""Operators: the nodes of a dataflow, and everything that other components may ask of a kind of operator.

    Input ──segment──▶ Arrange            state: rows by key, shared by every view that looks them up
      └────segment──▶ Lookup ──segment──▶ Lookup ──segment──▶ Aggregate ──segment──▶ Sink

An operator has ports; each port is fed by segments. A **segment** (`segment`) is a linear SELECT over the output of one
operator: it runs where its source ran, needs no state, and is one prepared DuckDB statement. Between a segment and an
operator with a key there is an exchange.

An operator's id is the hash of its kind and fields, its sources included. So equal sub-plans of all views are one node,
and stored state is found by what it means. Column names inside a dataflow are positions, never names of a query.

Each kind is one module of `kinds`. Schedulers, loads, compaction, EXPLAIN and diagrams use only the members that
`Operator` declares; no other component distinguishes kinds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.vector_predicates import VectorPredicate
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.types import Type
from viewkeeper.operators.segment import OMITTED_IF_EMPTY, Segment
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state import run as state_run
from viewkeeper.state.run import Arrangement, Run

if TYPE_CHECKING:
    from viewkeeper.operators.aggregation.row_groups import RowAggregate
    from viewkeeper.operators.aggregation.shared_measures import SharedMeasure
    from viewkeeper.operators.description import ExplainContext, OperatorDescription
    from viewkeeper.operators.keyed_state import KeyedStateLayout

Ports = Sequence[Sequence[pa.Table]]
"""The delta pieces that arrived at each port."""


class LookupSpec(NamedTuple):
    """An equality lookup: the arrangement, whether its new state is read, and the columns fetched, by their names
    there.

    For an `optional` relation, `match` has the conditions beside the key that decide on a match.
    """

    arrangement: str
    new_state: bool
    fetched_columns: tuple[tuple[str, Column], ...]
    optional: str = ""
    match: tuple[Expr, ...] = ()


class ExecutionContext(Protocol):
    """What an operator sees while it runs, in the driver or in a Spark task with its range of the hashes."""

    statements: PreparedStatements
    memory: MemoryBudget
    skipped: dict[str, int]
    """Rows that lookups did not produce because they cannot reach an exit, by operator id."""

    @property
    def old(self) -> Callable[[str], Arrangement]:
        """The published state of a slot."""

    def new(self, slot: str) -> Arrangement:
        """Return the published state of a slot plus the runs that this batch has added so far."""

    def state(self, operator: Operator) -> list[Arrangement]:
        """Return the published state of all slots of an operator."""

    def emit_runs(self, operator: Operator, runs: Sequence[Run]) -> None:
        """Add one run to each slot of an operator in this batch."""

    def row_filter(self, operator: Operator) -> tuple[VectorPredicate, ...]:
        """Return conditions that every consumer of the operator's rows applies; none of them can fail."""


@dataclass(frozen=True)
class Operator:
    """Base of the operators; it has the defaults of all members that a kind does not define."""

    kind: ClassVar[str]
    stateful: ClassVar[bool] = False
    needs_exchange: ClassVar[bool] = True
    """Whether its input rows are repartitioned by hash."""
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    is_arrangement: ClassVar[bool] = False
    """Whether it only keeps its input rows for lookups and has no output."""
    is_load_only: ClassVar[bool] = False
    """Whether it runs in first loads only, not in batches of changes."""
    has_canceling_output: ClassVar[bool] = False
    """Whether it may output rows that are in no state because another operator's output cancels them."""
    has_joint_ports: ClassVar[bool] = False
    """Whether a key's rows at all ports are processed together."""
    retires_operators: ClassVar[bool] = False
    """Whether it does the work of other operators, its `retired_operators`."""
    members_slot: ClassVar[int | None] = None
    """The slot with the members of a family, for an operator that computes members' rows."""
    can_compact: ClassVar[bool] = False
    """Whether the deltas that wait at a port can be reduced by `compact`."""

    @cached_property
    def id(self) -> str:
        return f"{self.kind}-{content_id(self.kind, self)}"

    # -- place in the dataflow -----------------------------------------------------------------------------------------

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments that feed each port."""
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect(f"A {type(self).__name__} does not say what it is.")

    @property
    def arity(self) -> int:
        """The number of ports at which deltas arrive."""
        return max(1, len(self.ports))

    @property
    def input_table(self) -> int | None:
        """The base table whose changes it outputs."""
        return None

    @property
    def arranged_table(self) -> int | None:
        """The base table that it arranges."""
        return None

    @property
    def arrangement_key(self) -> tuple[str, ...]:
        """The columns by which its arrangement is looked up."""
        return ()

    @property
    def output_view(self) -> int | None:
        """The view that its input rows belong to."""
        return None

    @property
    def upstream_ids(self) -> tuple[str, ...]:
        """The operators whose output is its input."""
        return tuple(s.source for s in self.segments())

    @property
    def new_state_lookups(self) -> tuple[str, ...]:
        """Arrangements of other operators that it reads in their new state."""
        return ()

    @property
    def lookup_columns(self) -> Mapping[str, frozenset[str]]:
        """The columns that it reads of each arrangement, in the new or the old state."""
        return {}

    @property
    def probed_arrangement(self) -> str | None:
        """The arrangement in which it looks up each row separately; such an operator is linear and can run piece by
        piece."""
        return None

    @property
    def probed_arrangements(self) -> tuple[str, ...]:
        """All arrangements in which it looks up rows separately."""
        return () if self.probed_arrangement is None else (self.probed_arrangement,)

    @property
    def retired_operators(self) -> tuple[str, ...]:
        """The operators whose work this one does."""
        return ()

    @property
    def lookup(self) -> LookupSpec | None:
        """The lookup that this operator is, if it does nothing else; then shared paths can include it."""
        return None

    def segments(self) -> Iterator[Segment]:
        for port in self.ports:
            yield from port

    @property
    def aggregation_input_id(self) -> str | None:
        """Identifies the rows that it aggregates and the keys, without the measures; None if its state cannot be shared
        with other aggregates."""
        return None

    @property
    def shared_measures(self) -> Mapping[str, SharedMeasure]:
        """The measures that it computes, by output column."""
        return {}

    def with_measures(self, measures: Sequence[SharedMeasure]) -> Operator:
        """Return the operator that computes these measures of the same rows by the same keys, for several views."""
        raise Defect(f"A {self.kind} adds nothing up.")

    @property
    def grouping_columns(self) -> tuple[str, ...] | None:
        """Output columns that are also its key: rows that agree in them are output by one task. None if the output
        columns do not show how its rows were partitioned."""
        return None

    @property
    def display_key(self) -> tuple[str, ...] | None:
        """The output columns that identify a row to a user; None if all columns do."""
        return None

    def without_overflow_checks(self, segment: Segment) -> Segment:
        """Return a segment over this operator without its overflow check. Synchronous views use it because they check
        for overflow before they run the segment."""
        return segment

    # -- running ------------------------------------------------------------------------------------------------------

    def route_to_ports(
        self, statements: PreparedStatements, port: int, delta: pa.Table
    ) -> Iterable[tuple[int, pa.Table]]:
        """Return what is sent to which port for the output of a port's segment; an operator may pre-aggregate here."""
        return ((port, delta),) if delta.num_rows else ()

    def build_table_delta(
        self, statements: PreparedStatements, columns: Sequence[Column], changes: pa.Table
    ) -> pa.Table:
        """Return the input delta for a table's changes, if it arranges the table and holds these columns."""
        raise Defect(f"{self.id} is fed without a segment.")

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        """Yield the output delta for the deltas at its ports, in pieces."""
        raise Defect(f"Nobody runs a {self.kind}.")

    def compact(self, statements: PreparedStatements, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        """Return the deltas that wait at a port as one delta with fewer rows."""
        raise Defect(f"What waits for a {self.kind} stays as it is.")

    @property
    def unproven_part(self) -> str | None:
        """The part of the query that it runs as SQL and that DuckDB may refuse; the planner runs it once (`dry_run`)
        before the view is created."""
        return None

    def dry_run(self, statements: PreparedStatements) -> None:
        """Run its SQL over empty inputs, so that DuckDB reports errors."""

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def slot_count(self) -> int:
        """The number of arrangements that it keeps."""
        return 0

    @property
    def keyed_state(self) -> tuple[tuple[KeyedStateLayout, ...], ...]:
        """For each slot, how its rows are stored in store tables for synchronous views; empty if they cannot be."""
        return ()

    @property
    def can_run_in_write(self) -> bool:
        """Whether it can run within a write call: it needs only its input and its keyed state."""
        return not self.lookup_columns and not self.is_arrangement and len(self.keyed_state) == self.slot_count

    def build_row_aggregate(self, state_tables: Sequence[Sequence[Table]]) -> RowAggregate | None:
        """Return the row-at-a-time aggregation over these tables of keyed state, by slot; None if it does not support
        this operator."""
        return None

    def merge_runs(self, statements: PreparedStatements, slot: int, runs: Sequence[Run]) -> Run:
        """Return the sum of runs of one slot as one run."""
        return state_run.merge(statements, runs)

    def takes_part(self, on_spark: bool) -> bool:
        """Return whether it runs in first loads, in the driver or on Spark."""
        return True

    def seed(self, statements: PreparedStatements) -> Iterable[tuple[int, pa.Table]]:
        """Yield (port, delta) that its first load gets whatever its input."""
        return ()

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        """Return its whole current output, computed from its state, as a delta from nothing."""
        raise Defect(f"A {self.kind} does not remember its output.")

    # -- descriptions --------------------------------------------------------------------------------------------------

    def describe(self, context: ExplainContext) -> str:
        """Return its line in EXPLAIN."""
        raise Defect(f"A {self.kind} has no words for EXPLAIN.")

    def describe_step(self, context: ExplainContext) -> str:
        """Return a short description of a lookup, for EXPLAIN of a path of lookups in one line."""
        raise Defect(f"A {self.kind} is no lookup of a path.")

    def reason(self, context: ExplainContext) -> str | None:
        """Return why this kind is used and no cheaper one, or what a change costs here; None if the kind is reason
        enough."""
        return None

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        """Return the text of its box in a plan diagram."""
        raise Defect(f"A {self.kind} cannot be drawn.")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns at its ports that identify its rows; empty if they are not known."""
        return next((s.key for s in self.segments() if s.key), ())

    def lineage(self, column_name: str) -> tuple[str, Expr] | None:
        """Return a source operator and the expression over its columns that computes a column; None if unknown."""
        segment = next(self.segments(), None)
        if segment is None:
            return None
        return next(((segment.source, n.expr) for n in segment.exprs if n.name == column_name), None)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        """Return the text of each column's expression; `expr_text` renders an expression over an operator's columns."""
        segment = next(self.segments())
        return {n.name: expr_text(segment.source, n.expr) for n in segment.exprs}


def slot_names(operator: Operator) -> list[str]:
    """Return the names of an operator's state slots in the manifest."""
    return [f"{operator.id}/{i}" for i in range(operator.slot_count)]


def content_id(kind: str, value: Any) -> str:
    """Return a hash that is equal for equal kinds and fields."""
    text = json.dumps([kind, *_field_values(value)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _field_values(value: Any) -> list[Any]:
    """Return the fields' values as JSON. Fields that were added later are left out while they are empty, so that the
    names of stored state do not change."""
    values = ((f, getattr(value, f.name)) for f in fields(value))
    return [_to_json(v) for f, v in values if v or not f.metadata.get(OMITTED_IF_EMPTY)]


def _to_json(value: Any) -> Any:
    if isinstance(value, Expr):
        return value.to_json()
    if isinstance(value, Column):  # an empty alias is left out: ids must not change with the program's version
        return [value.name, str(value.type), value.nullable, *([value.internal_alias] if value.internal_alias else [])]
    if isinstance(value, Type):
        return str(value)
    if is_dataclass(value):
        return _field_values(value)
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    return value
