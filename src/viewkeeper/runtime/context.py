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

from viewkeeper.expressions.backends.vector_predicates import Comparison
from viewkeeper.operators.chunked_execution import joined
from viewkeeper.operators.delta_join.operator import Found
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.operators.segment import Segment
from viewkeeper.operators.segment_execution import passed
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.error_attribution import Ports, in_operator, in_segment
from viewkeeper.runtime.operator_errors import Failed, attributed_to
from viewkeeper.state.run import Arrangement, Run

Fed = tuple[str, int, pa.Table]
"""A delta on its way: (consumer, port, delta)."""

Feed = tuple[str, int, Segment | None]
"""A way that an output takes: (consumer, port, segment); without a segment to an image of the table."""


@dataclass
class Site:
    """`old` gives the published state of a slot; `active` names the operators that take part in this batch."""

    duck: Duck
    flow: Flow
    old: Callable[[str], Arrangement]
    active: frozenset[str]
    memory: Memory
    keep: Callable[[str, Run], Run] | None = None
    """Called with a slot and its run as soon as that is made; gives the run, or the same one from a file."""
    added: dict[str, Run] = field(default_factory=dict)
    carried: dict[str, Run] = field(default_factory=dict)
    """What an earlier level added at this site's share of the hashes; it is written there, and only looked up here."""
    clock: dict[str, float] = field(default_factory=dict)
    """Seconds that each operator took, with the segments over it."""
    made: dict[str, int] = field(default_factory=dict)
    """Rows that each gave."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows that look-ahead spared lookups."""
    changed: Callable[[str], pa.Table | None] = lambda source: None
    """The changes that a source gave in this batch, where they are at hand: errors name a row of them."""
    told: Callable[[int, int], None] = lambda done, of: None
    """Hears of every piece of work that is done: how many operators have run, and of how many."""

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        """The operator's output delta for what arrived at its ports, in pieces; an arrangement has none."""

        def find_row(error: Exception) -> Failed | None:
            aside = replace(self, keep=None, added=dict(self.added), clock={})

            def work(part: Ports) -> None:
                for _ in operator.run(aside, [[] if p is None else [p] for p in part]):
                    pass

            given = [joined(tables) for tables in ports]
            return in_operator(self.duck, self.flow, operator, given, work, error, self.changed)

        with attributed_to(operator.id, find_row):
            yield from operator.run(self, ports)

    def feed(self, source: Operator, output: pa.Table) -> Iterator[Fed]:
        """The output through every segment over it, ready for the consumers' ports."""
        for feed in self.feeds(source):
            for piece in self.memory.pieces(self.leaving(feed, output)):
                yield from self.fed(feed, piece)

    def leaving(self, feed: Feed, output: pa.Table | Found) -> pa.Table:
        """What an output is one way: all of it, or, of rows that are told by their places, those that arrived there."""
        if not isinstance(output, Found):
            return output
        with attributed_to(feed[0] if feed[2] is None else feed[2].source):
            return output.at(feed[2])

    def feeds(self, source: Operator) -> list[Feed]:
        """The ways that an operator's output takes; they do not depend on each other."""
        images = () if source.changes_of is None else self.flow.images.get(source.changes_of, ())
        ways = [*((i.id, 0, None) for i in images), *self.flow.consumers.get(source.id, ())]
        return [way for way in ways if way[0] in self.active]

    def asked_of(self, operator: Operator) -> tuple[Comparison, ...]:
        """Conditions that all of its rows must meet wherever they go: where that is one way, those of its segment."""
        ways = self.feeds(operator)
        segment = ways[0][2] if len(ways) == 1 else None
        return () if segment is None or segment.compared is None else segment.compared

    def fed(self, feed: Feed, output: pa.Table) -> list[Fed]:
        """What arrives at the end of one way, of a piece of the output."""
        consumer, port, segment = feed
        if not output.num_rows:
            return []
        operator = self.flow.operators[consumer]
        if segment is None:
            held = self.flow.held[consumer]
            with attributed_to(consumer):
                return [(consumer, port, operator.of_table(self.duck, held, output))]

        def work(part: Ports) -> object:
            return [self._through_segment(operator, port, segment, p) for p in part if p is not None]

        def find_row(error: Exception) -> Failed | None:
            return in_segment(self.duck, self.flow, segment, consumer, output, work, error, self.changed)

        with attributed_to(consumer, find_row):
            return self._through_segment(operator, port, segment, output)

    def compacted(self, operator: Operator, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        """What waits at a port of an operator as one delta, with fewer rows."""
        with attributed_to(operator.id):
            return operator.compacted(self.duck, port, deltas)

    def _through_segment(self, operator: Operator, port: int, segment: Segment, output: pa.Table) -> list[Fed]:
        delta = passed(self.duck, segment, output)
        return [(operator.id, at, rows) for at, rows in operator.arriving(self.duck, port, delta)]

    def images(self, source: Operator, output: pa.Table) -> Iterator[Fed]:
        """The ways to the table's arrangements only."""
        for feed in self.feeds(source):
            if feed[2] is None:
                yield from self.fed(feed, output)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.old(slot) for slot in slots(operator)]

    def add(self, operator: Operator, runs: Sequence[Run]) -> None:
        for slot, run in zip(slots(operator), runs, strict=True):
            if run.num_rows:
                self.added[slot] = run if self.keep is None else self.keep(slot, run)

    def fresh(self, slot: str) -> Arrangement:
        """The state with what this batch has added so far."""
        run = self.added.get(slot) or self.carried.get(slot)
        return self.old(slot).plus(run) if run is not None else self.old(slot)
