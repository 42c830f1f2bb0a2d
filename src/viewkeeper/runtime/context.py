"""The execution context of operators: in the driver, or in one Spark task for its range of hashes.

The lanes differ only in how deltas are moved between contexts; inside a context they run the same code. `run` computes
an operator's output from the deltas at its ports. `feed_consumers` passes an output through the segments to the
consumers' ports.

    old state   the runs that the last published batch lists (`old`)
    new state   old state + `new_runs`, the runs that this batch has added (`new`)

An error raised by an operator's own code becomes an `OperatorError`, which names the operator (`operator_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from viewkeeper.expressions.backends.vector_predicates import VectorPredicate
from viewkeeper.operators.chunked_execution import combine_deltas
from viewkeeper.operators.delta_join.operator import ExitRows
from viewkeeper.operators.operator import Operator, slot_names
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.segment_execution import run_segment
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.error_attribution import PortRows, attribute_to_operator, attribute_to_segment
from viewkeeper.runtime.operator_errors import OperatorError, attribute_errors
from viewkeeper.state.run import Arrangement, Run

PortDelta = tuple[str, int, pa.Table]
"""A delta for a consumer: (consumer, port, delta)."""

FeedEdge = tuple[str, int, Segment | None]
"""An edge from an output: (consumer, port, segment). An edge to an image of a base table has no segment."""


@dataclass
class LocalContext:
    """`old` returns the published state of a slot; `active` are the ids of the operators that run in this batch."""

    statements: PreparedStatements
    dataflow: Dataflow
    old: Callable[[str], Arrangement]
    active: frozenset[str]
    memory: MemoryBudget
    persist_run: Callable[[str, Run], Run] | None = None
    """Called with a slot and its new run; returns that run, or the same run opened from a file."""
    new_runs: dict[str, Run] = field(default_factory=dict)
    carried_runs: dict[str, Run] = field(default_factory=dict)
    """Runs that an earlier round added in this range of hashes; that round writes them, this one only reads them."""
    operator_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by operator, including the segments on its output."""
    output_rows: dict[str, int] = field(default_factory=dict)
    """Output rows by operator."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows by operator that lookups skipped by semijoin reduction."""
    source_changes: Callable[[str], pa.Table | None] = lambda source: None
    """Return a source's changes in this batch, or None if they are not in memory; used to name a row in errors."""
    progress: Callable[[int, int], None] = lambda done, of: None
    """Called after each operator with the number of operators that have run, and the number of all."""

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        """Yield the operator's output delta for the deltas at its ports, in pieces; an arrangement has no output."""

        def find_row(error: Exception) -> OperatorError | None:
            trial_context = replace(self, persist_run=None, new_runs=dict(self.new_runs), operator_seconds={})

            def attempt(port_rows: PortRows) -> None:
                for _ in operator.run(trial_context, [[] if rows is None else [rows] for rows in port_rows]):
                    pass

            inputs = [combine_deltas(tables) for tables in ports]
            return attribute_to_operator(
                self.statements, self.dataflow, operator, inputs, attempt, error, self.source_changes
            )

        with attribute_errors(operator.id, find_row):
            yield from operator.run(self, ports)

    def feed_consumers(self, source: Operator, output: pa.Table) -> Iterator[PortDelta]:
        """Pass the output through the segment of every edge and yield the deltas for the consumers' ports."""
        for edge in self.edges(source):
            for piece in self.memory.pieces(self.edge_output(edge, output)):
                yield from self.feed_edge(edge, piece)

    def edge_output(self, edge: FeedEdge, output: pa.Table | ExitRows) -> pa.Table:
        """Return the rows of an output on one edge: all of its rows.

        If the rows are row ids (late materialization), these are the materialized rows at the edge's exit.
        """
        if not isinstance(output, ExitRows):
            return output
        with attribute_errors(edge[0] if edge[2] is None else edge[2].source):
            return output.table_at(edge[2])

    def edges(self, source: Operator) -> list[FeedEdge]:
        """Return the active edges from an operator's output; they do not depend on each other."""
        images = () if source.input_table is None else self.dataflow.images.get(source.input_table, ())
        edges = [*((image.id, 0, None) for image in images), *self.dataflow.edges.get(source.id, ())]
        return [edge for edge in edges if edge[0] in self.active]

    def row_filter(self, operator: Operator) -> tuple[VectorPredicate, ...]:
        """Return conditions that every consumer applies to the operator's output.

        With one edge these are its segment's conditions; with several edges there are none.
        """
        edges = self.edges(operator)
        segment = edges[0][2] if len(edges) == 1 else None
        return () if segment is None or segment.vector_conditions is None else segment.vector_conditions

    def feed_edge(self, edge: FeedEdge, output: pa.Table) -> list[PortDelta]:
        """Pass a piece of the output along one edge and return the deltas for the consumer's ports."""
        consumer, port, segment = edge
        if not output.num_rows:
            return []
        operator = self.dataflow.operators[consumer]
        if segment is None:
            columns = self.dataflow.image_columns[consumer]
            with attribute_errors(consumer):
                return [(consumer, port, operator.build_table_delta(self.statements, columns, output))]

        def attempt(port_rows: PortRows) -> object:
            return [self._run_segment(operator, port, segment, rows) for rows in port_rows if rows is not None]

        def find_row(error: Exception) -> OperatorError | None:
            return attribute_to_segment(
                self.statements, self.dataflow, segment, consumer, output, attempt, error, self.source_changes
            )

        with attribute_errors(consumer, find_row):
            return self._run_segment(operator, port, segment, output)

    def compact(self, operator: Operator, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        """Combine the deltas that are pending at an operator's port into one delta with fewer rows."""
        with attribute_errors(operator.id):
            return operator.compact(self.statements, port, deltas)

    def _run_segment(self, operator: Operator, port: int, segment: Segment, output: pa.Table) -> list[PortDelta]:
        delta = run_segment(self.statements, segment, output)
        return [
            (operator.id, target_port, rows)
            for target_port, rows in operator.route_to_ports(self.statements, port, delta)
        ]

    def feed_images(self, source: Operator, output: pa.Table) -> Iterator[PortDelta]:
        """Pass the output along the edges to the table's arrangements only."""
        for edge in self.edges(source):
            if edge[2] is None:
                yield from self.feed_edge(edge, output)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.old(slot) for slot in slot_names(operator)]

    def emit_runs(self, operator: Operator, runs: Sequence[Run]) -> None:
        for slot, run in zip(slot_names(operator), runs, strict=True):
            if run.num_rows:
                self.new_runs[slot] = run if self.persist_run is None else self.persist_run(slot, run)

    def new(self, slot: str) -> Arrangement:
        """Return the slot's state including the run that this batch has added so far."""
        run = self.new_runs.get(slot) or self.carried_runs.get(slot)
        return self.old(slot).with_runs(run) if run is not None else self.old(slot)
