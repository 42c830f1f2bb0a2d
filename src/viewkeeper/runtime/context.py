"""A place where operators run: the driver, or one Spark task for its share of the hash range.

The two lanes differ only in how deltas travel between sites. What happens at a site is the same code: `run` gives an
operator's output for the deltas at its ports, `feed` passes an output through the segments over it. An arrangement's
*old* state is what the last published batch lists; `added` collects what this batch adds to each.

What an operator's own code raises here becomes `Failed`, which names the operator (`failures`).
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
"""A delta on its way: (consumer, port, delta)."""

FeedEdge = tuple[str, int, Segment | None]
"""A way that an output takes: (consumer, port, segment); without a segment to an image of the table."""


@dataclass
class LocalContext:
    """`old` gives the published state of a slot; `active` names the operators that take part in this batch."""

    statements: PreparedStatements
    dataflow: Dataflow
    old: Callable[[str], Arrangement]
    active: frozenset[str]
    memory: MemoryBudget
    persist_run: Callable[[str, Run], Run] | None = None
    """Called with a slot and its run as soon as that is made; gives the run, or the same one from a file."""
    new_runs: dict[str, Run] = field(default_factory=dict)
    carried_runs: dict[str, Run] = field(default_factory=dict)
    """What an earlier level added at this site's share of the hashes; it is written there, and only looked up here."""
    operator_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each operator took, with the segments over it."""
    output_rows: dict[str, int] = field(default_factory=dict)
    """Rows that each gave."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows that look-ahead spared lookups."""
    source_changes: Callable[[str], pa.Table | None] = lambda source: None
    """The changes that a source gave in this batch, where they are at hand: errors name a row of them."""
    progress: Callable[[int, int], None] = lambda done, of: None
    """Hears of every piece of work that is done: how many operators have run, and of how many."""

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        """The operator's output delta for what arrived at its ports, in pieces; an arrangement has none."""

        def find_row(error: Exception) -> OperatorError | None:
            aside = replace(self, persist_run=None, new_runs=dict(self.new_runs), operator_seconds={})

            def work(part: PortRows) -> None:
                for _ in operator.run(aside, [[] if p is None else [p] for p in part]):
                    pass

            given = [combine_deltas(tables) for tables in ports]
            return attribute_to_operator(
                self.statements, self.dataflow, operator, given, work, error, self.source_changes
            )

        with attribute_errors(operator.id, find_row):
            yield from operator.run(self, ports)

    def feed_consumers(self, source: Operator, output: pa.Table) -> Iterator[PortDelta]:
        """The output through every segment over it, ready for the consumers' ports."""
        for feed in self.edges(source):
            for piece in self.memory.pieces(self.edge_output(feed, output)):
                yield from self.feed_edge(feed, piece)

    def edge_output(self, edge: FeedEdge, output: pa.Table | ExitRows) -> pa.Table:
        """What an output is one way: all of it, or, of rows that are told by their places, those that arrived there."""
        if not isinstance(output, ExitRows):
            return output
        with attribute_errors(edge[0] if edge[2] is None else edge[2].source):
            return output.table_at(edge[2])

    def edges(self, source: Operator) -> list[FeedEdge]:
        """The ways that an operator's output takes; they do not depend on each other."""
        images = () if source.input_table is None else self.dataflow.images.get(source.input_table, ())
        ways = [*((i.id, 0, None) for i in images), *self.dataflow.edges.get(source.id, ())]
        return [way for way in ways if way[0] in self.active]

    def row_filter(self, operator: Operator) -> tuple[VectorPredicate, ...]:
        """Conditions that all of its rows must meet wherever they go: where that is one way, those of its segment."""
        ways = self.edges(operator)
        segment = ways[0][2] if len(ways) == 1 else None
        return () if segment is None or segment.vector_conditions is None else segment.vector_conditions

    def feed_edge(self, edge: FeedEdge, output: pa.Table) -> list[PortDelta]:
        """What arrives at the end of one way, of a piece of the output."""
        consumer, port, segment = edge
        if not output.num_rows:
            return []
        operator = self.dataflow.operators[consumer]
        if segment is None:
            held = self.dataflow.image_columns[consumer]
            with attribute_errors(consumer):
                return [(consumer, port, operator.build_table_delta(self.statements, held, output))]

        def work(part: PortRows) -> object:
            return [self._run_segment(operator, port, segment, p) for p in part if p is not None]

        def find_row(error: Exception) -> OperatorError | None:
            return attribute_to_segment(
                self.statements, self.dataflow, segment, consumer, output, work, error, self.source_changes
            )

        with attribute_errors(consumer, find_row):
            return self._run_segment(operator, port, segment, output)

    def compact(self, operator: Operator, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        """What waits at a port of an operator as one delta, with fewer rows."""
        with attribute_errors(operator.id):
            return operator.compact(self.statements, port, deltas)

    def _run_segment(self, operator: Operator, port: int, segment: Segment, output: pa.Table) -> list[PortDelta]:
        delta = run_segment(self.statements, segment, output)
        return [(operator.id, at, rows) for at, rows in operator.route_to_ports(self.statements, port, delta)]

    def feed_images(self, source: Operator, output: pa.Table) -> Iterator[PortDelta]:
        """The ways to the table's arrangements only."""
        for feed in self.edges(source):
            if feed[2] is None:
                yield from self.feed_edge(feed, output)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.old(slot) for slot in slot_names(operator)]

    def emit_runs(self, operator: Operator, runs: Sequence[Run]) -> None:
        for slot, run in zip(slot_names(operator), runs, strict=True):
            if run.num_rows:
                self.new_runs[slot] = run if self.persist_run is None else self.persist_run(slot, run)

    def new(self, slot: str) -> Arrangement:
        """The state with what this batch has added so far."""
        run = self.new_runs.get(slot) or self.carried_runs.get(slot)
        return self.old(slot).with_runs(run) if run is not None else self.old(slot)
