"""What an operator is: a node of the maintenance plan, and all that is to be known of its kind.

    Input ──segment──▶ Arrange            state: rows by key, shared by every view that looks them up
      └────segment──▶ Lookup ──segment──▶ Lookup ──segment──▶ Aggregate ──segment──▶ Sink

An operator has ports; a port is fed by segments. A **segment** (`segments`) is a linear statement over the output of
one operator: it runs where its source ran, needs no state, and is one prepared DuckDB statement. Between a segment and
an operator with a key lies an exchange.

An operator's id is the hash of what it computes, its sources included, so equal sub-plans of all views are one node,
and state on disk is found again by what it means. Column names inside are positions, never names of a query.

A kind is one module of `kinds`. Whoever runs, loads, merges, explains or draws operators asks them what this class
declares, and never of which kind they are.
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
"""The deltas that arrived at each port."""


class LookupSpec(NamedTuple):
    """A lookup by equal keys: in which arrangement and state of it, and what is taken of a row, by its name there.
    Of an `optional` relation also what decides on a match."""

    arrangement: str
    new_state: bool
    fetched_columns: tuple[tuple[str, Column], ...]
    optional: str = ""
    match: tuple[Expr, ...] = ()


class ExecutionContext(Protocol):
    """Where an operator runs: the driver, or a Spark task with its share of the hashes."""

    statements: PreparedStatements
    memory: MemoryBudget
    skipped: dict[str, int]
    """Rows that lookups did not make, by operator: they lead nowhere."""

    @property
    def old(self) -> Callable[[str], Arrangement]:
        """Gives the published state of a slot."""

    def new(self, slot: str) -> Arrangement:
        """The state with what this batch has added so far."""

    def state(self, operator: Operator) -> list[Arrangement]:
        """The published state of all its slots."""

    def emit_runs(self, operator: Operator, runs: Sequence[Run]) -> None:
        """What this batch adds to each slot."""

    def row_filter(self, operator: Operator) -> tuple[VectorPredicate, ...]:
        """Conditions that all of its rows must meet wherever they go; none of them can fail."""


@dataclass(frozen=True)
class Operator:
    """Base of the operators. What a kind does not say is as here."""

    kind: ClassVar[str]
    stateful: ClassVar[bool] = False
    needs_exchange: ClassVar[bool] = True
    """Whether its rows must travel to whoever owns their hash."""
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    is_arrangement: ClassVar[bool] = False
    """Whether it only keeps its input's rows, to be looked up, and passes nothing on."""
    is_load_only: ClassVar[bool] = False
    """Whether it serves first loads, and not batches of changes."""
    has_canceling_output: ClassVar[bool] = False
    """Whether it may give rows that were in no state, which another operator's output takes back."""
    has_joint_ports: ClassVar[bool] = False
    """Whether a key's rows at all its ports are one piece of work."""
    retires_operators: ClassVar[bool] = False
    """Whether it does the work of other operators, those that it `stands_for`."""
    members_slot: ClassVar[int | None] = None
    """The slot that has the members of a family, if it makes members' rows."""
    can_compact: ClassVar[bool] = False
    """Whether what waits at a port can be `compacted`."""

    @cached_property
    def id(self) -> str:
        return f"{self.kind}-{content_id(self.kind, self)}"

    # -- its place in the graph ---------------------------------------------------------------------------------------

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        """For each port, the segments that feed it."""
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect(f"A {type(self).__name__} does not say what it is.")

    @property
    def arity(self) -> int:
        """How many ports deltas arrive at."""
        return max(1, len(self.ports))

    @property
    def input_table(self) -> int | None:
        """The base table whose changes it gives."""
        return None

    @property
    def arranged_table(self) -> int | None:
        """The base table that it arranges."""
        return None

    @property
    def arrangement_key(self) -> tuple[str, ...]:
        """The columns by which an arrangement is looked up."""
        return ()

    @property
    def output_view(self) -> int | None:
        """The view whose rows arrive here."""
        return None

    @property
    def upstream_ids(self) -> tuple[str, ...]:
        """The operators whose output it is given."""
        return tuple(s.source for s in self.segments())

    @property
    def new_state_lookups(self) -> tuple[str, ...]:
        """Arrangements of other operators that it reads in their fresh state."""
        return ()

    @property
    def lookup_columns(self) -> Mapping[str, frozenset[str]]:
        """The columns that it takes of each arrangement which it reads, fresh or old."""
        return {}

    @property
    def probed_arrangement(self) -> str | None:
        """The arrangement in which it looks up each row by itself: then it is linear, and can run piece by piece."""
        return None

    @property
    def probed_arrangements(self) -> tuple[str, ...]:
        """All arrangements in which it looks up rows by themselves."""
        return () if self.probed_arrangement is None else (self.probed_arrangement,)

    @property
    def retired_operators(self) -> tuple[str, ...]:
        return ()

    @property
    def lookup(self) -> LookupSpec | None:
        """The lookup that it is, if it is nothing else: then it can be made together with those of other views."""
        return None

    def segments(self) -> Iterator[Segment]:
        for port in self.ports:
            yield from port

    @property
    def aggregation_input_id(self) -> str | None:
        """Which rows it adds up and by which keys, whatever it makes of them; None if it cannot be one with others."""
        return None

    @property
    def shared_measures(self) -> Mapping[str, SharedMeasure]:
        """What it makes of the rows that it adds up, by the column that has it."""
        return {}

    def with_measures(self, measures: Sequence[SharedMeasure]) -> Operator:
        """The same rows by the same keys, of which these are made, for several views."""
        raise Defect(f"A {self.kind} adds nothing up.")

    @property
    def grouping_columns(self) -> tuple[str, ...] | None:
        """Columns of its output that are its key too: rows that agree in them are made where the key's rows have come
        to. None if its output does not show by what its rows were distributed."""
        return None

    @property
    def display_key(self) -> tuple[str, ...] | None:
        """The columns of its output by which a person knows a row; None if all of them say something."""
        return None

    def without_overflow_checks(self, segment: Segment) -> Segment:
        """A segment over it without what it says of values that do not fit, for who looks at those first."""
        return segment

    # -- running ------------------------------------------------------------------------------------------------------

    def route_to_ports(
        self, statements: PreparedStatements, port: int, delta: pa.Table
    ) -> Iterable[tuple[int, pa.Table]]:
        """What travels to which port, of what a port's segment gave."""
        return ((port, delta),) if delta.num_rows else ()

    def build_table_delta(
        self, statements: PreparedStatements, columns: Sequence[Column], changes: pa.Table
    ) -> pa.Table:
        """What it is given of a table's changes, if it arranges the table and holds these columns."""
        raise Defect(f"{self.id} is fed without a segment.")

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        """Its output delta for what arrived at its ports, in pieces."""
        raise Defect(f"Nobody runs a {self.kind}.")

    def compact(self, statements: PreparedStatements, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        """What waits at a port as one delta, with fewer rows."""
        raise Defect(f"What waits for a {self.kind} stays as it is.")

    @property
    def unproven_part(self) -> str | None:
        """What of the query it runs as SQL that DuckDB may refuse: then it is tried before there is a view."""
        return None

    def dry_run(self, statements: PreparedStatements) -> None:
        """Run it over nothing, for what DuckDB says."""

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def slot_count(self) -> int:
        """How many arrangements of its own it keeps."""
        return 0

    @property
    def keyed_state(self) -> tuple[tuple[KeyedStateLayout, ...], ...]:
        """For each slot how its rows lie in a store, so that a write call can keep it; none if they cannot."""
        return ()

    @property
    def can_run_in_write(self) -> bool:
        """Whether it can run within a write call: all it needs is what arrives, and what lies on its shelves."""
        return not self.lookup_columns and not self.is_arrangement and len(self.keyed_state) == self.slot_count

    def build_row_aggregate(self, state_tables: Sequence[Sequence[Table]]) -> RowAggregate | None:
        """The same for few rows without a statement, its shelves being these tables, by slot; None: there is no way."""
        return None

    def merge_runs(self, statements: PreparedStatements, slot: int, runs: Sequence[Run]) -> Run:
        """Runs of one of its slots as one."""
        return state_run.merge(statements, runs)

    def takes_part(self, on_spark: bool) -> bool:
        """Whether it takes part in first loads, in the driver or on Spark."""
        return True

    def seed(self, statements: PreparedStatements) -> Iterable[tuple[int, pa.Table]]:
        """What it is given at its first load whatever its input, by port."""
        return ()

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        """Its whole current output from its state, as a delta from nothing."""
        raise Defect(f"A {self.kind} does not remember its output.")

    # -- telling ------------------------------------------------------------------------------------------------------

    def describe(self, context: ExplainContext) -> str:
        """What it does: its line in EXPLAIN."""
        raise Defect(f"A {self.kind} has no words for EXPLAIN.")

    def describe_step(self, context: ExplainContext) -> str:
        """The same in short, where a path of lookups is one line."""
        raise Defect(f"A {self.kind} is no lookup of a path.")

    def reason(self, context: ExplainContext) -> str | None:
        """Why it is of its kind and no cheaper one, or what a change costs here; None where the kind says it all."""
        return None

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        """What stands in its box."""
        raise Defect(f"A {self.kind} cannot be drawn.")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns at its ports by which its rows are told apart; none if that is not known."""
        return next((s.key for s in self.segments() if s.key), ())

    def lineage(self, column_name: str) -> tuple[str, Expr] | None:
        """An operator, and the expression over its columns that one of the own columns is; None if it is none."""
        segment = next(self.segments(), None)
        if segment is None:
            return None
        return next(((segment.source, n.expr) for n in segment.exprs if n.name == column_name), None)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        """What its columns are made of; `text` says it of an operator's expressions."""
        segment = next(self.segments())
        return {n.name: expr_text(segment.source, n.expr) for n in segment.exprs}


def slot_names(operator: Operator) -> list[str]:
    """The names of an operator's arrangements in the manifest."""
    return [f"{operator.id}/{i}" for i in range(operator.slot_count)]


def content_id(kind: str, value: Any) -> str:
    """The same for values that say the same."""
    text = json.dumps([kind, *_field_values(value)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _field_values(value: Any) -> list[Any]:
    """Fields that came later are left out of names where they say nothing, so that stored state keeps its name."""
    held = ((f, getattr(value, f.name)) for f in fields(value))
    return [_to_json(v) for f, v in held if v or not f.metadata.get(OMITTED_IF_EMPTY)]


def _to_json(value: Any) -> Any:
    if isinstance(value, Expr):
        return value.to_json()
    if isinstance(value, Column):  # what is not said is left out: a name must not change with the program's version
        return [value.name, str(value.type), value.nullable, *([value.internal_alias] if value.internal_alias else [])]
    if isinstance(value, Type):
        return str(value)
    if is_dataclass(value):
        return _field_values(value)
    if isinstance(value, tuple):
        return [_to_json(v) for v in value]
    return value
