"""All live views as one graph: who feeds whom, in which order. In which round, `levels` says.

It is a value: `union` makes it from a catalog's views, or from the graph of the catalog before, with which it shares
what is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from viewkeeper.model.schema import Column, Table
from viewkeeper.operators.kinds import Sink
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.compile.compiled_view import CompiledView, dependencies_of, slot_names
from viewkeeper.plan.logical.nodes import Expr

__all__ = ["Dataflow", "Edge", "slot_names"]

Edge = tuple[str, int, Segment]
"""Where an operator's output goes: (consumer, port, segment)."""


@dataclass(frozen=True)
class UsageCounts:
    """What decides what is kept: how often each thing is needed."""

    operators: Mapping[str, int] = field(default_factory=dict)
    """Views that need an operator; one that the flow has of its own is not listed."""
    columns: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Of a table: views that use a column of it."""
    image_columns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of an image: views that look a column up in it."""
    filters: Mapping[int, Mapping[Expr | None, int]] = field(default_factory=dict)
    """Of a table, if the store selects: segments that make a comparison; None: all segments over it."""
    first_users: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of an image: the first view that needs it, and its place there."""
    order_numbers: Mapping[str, int] = field(default_factory=dict)
    """Of operators: numbers that grow from sources to consumers."""
    id_hash_sum: int = 0
    """The sum of the hashes of the names of operators that keep state."""


@dataclass(frozen=True)
class Dataflow:
    """The operators of a set of views, sources first."""

    operators: Mapping[str, Operator] = field(default_factory=dict)
    tables: Mapping[int, Table] = field(default_factory=dict)
    """Base tables, their columns called as state knows them, with what is wanted of them (`selections`)."""
    views: Mapping[int, CompiledView] = field(default_factory=dict)
    edges: Mapping[str, Sequence[Edge]] = field(default_factory=dict)
    """For each operator the segments over it."""
    images: Mapping[int, Sequence[Operator]] = field(default_factory=dict)
    """The arrangements of each base table, in the order in which views came to need them."""
    used_columns: Mapping[int, tuple[Column, ...]] = field(default_factory=dict)
    """The columns of each base table that any view uses, its key included, in table order."""
    image_columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    """The columns of each image: those that are looked up in it.

    One image of a table, that by primary key or else the first, holds all that is used, for later loads.
    """
    slots: Mapping[str, str] = field(default_factory=dict)
    """The arrangements that are kept, by their name in the manifest, each with its operator."""
    keyed_images: bool = False
    """Whether every table has an image by primary key: the store needs it for before-images."""
    can_filter_scans: bool = False
    """Whether the store can be asked for the rows that matter only."""
    usage: UsageCounts = UsageCounts()
    retired: frozenset[str] = frozenset()
    """Operators whose work others do in this form of the flow (`paths`)."""
    is_variant: bool = False
    """Whether operators may be given what others make than the sources that they name."""

    @cached_property
    def derived_cache(self) -> dict[Any, Any]:
        """What has been worked out about sets of operators and of tables, for the next batch."""
        return {}

    def input_operators(self, operator: str) -> Iterable[str]:
        """The operators whose output it is given through segments."""
        if not self.is_variant:
            return dict.fromkeys(segment.source for segment in self.operators[operator].segments())
        return self._variant_inputs.get(operator, ())

    @cached_property
    def _variant_inputs(self) -> Mapping[str, Sequence[str]]:
        """`feeders` of all, where segments are given what other operators than their sources make."""
        found: dict[str, list[str]] = {}
        for source, ways in self.edges.items():
            for consumer in dict.fromkeys(way[0] for way in ways):
                found.setdefault(consumer, []).append(source)
        return found

    def reachable(self, from_: Iterable[str], candidates: Set[str]) -> frozenset[str]:
        """These operators, and those `among` others that rows can reach from them."""
        found = set(from_)
        waiting = list(found)
        while waiting:
            name = waiting.pop()
            operator = self.operators[name]
            images = () if operator.input_table is None else self.images.get(operator.input_table, ())
            for consumer in (*(way[0] for way in self.edges.get(name, ())), *(image.id for image in images)):
                if consumer in candidates and consumer not in found:
                    found.add(consumer)
                    waiting.append(consumer)
        return frozenset(found)

    @cached_property
    def batch_operators(self) -> frozenset[str]:
        """The operators that take part in a batch of changes; the others serve first loads."""
        return frozenset(
            n for n, operator in self.operators.items() if not operator.is_load_only and n not in self.retired
        )

    def sink(self, view: int) -> Sink:
        return self.views[view].sink

    def views_of(self, operator: str) -> frozenset[int]:
        """The views that need an operator."""
        return frozenset(view for view, made in self.views.items() if operator in made.operators)

    def dependencies(self, operator: Operator) -> Iterator[str]:
        """The operators that must run before this one."""
        return dependencies_of(operator)

    def upstream(self, of: Iterable[str]) -> set[str]:
        """These operators and everything they are made from."""
        found: set[str] = set()
        waiting = list(of)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(dependencies_of(self.operators[name]))
        return found

    def sort_operators(self, operator_ids: Iterable[str]) -> list[str]:
        """These operators, sources first."""
        return sorted(operator_ids, key=self.usage.order_numbers.__getitem__)

    def stateful_operators(self) -> Iterator[Operator]:
        return (self.operators[name] for name in dict.fromkeys(self.slots.values()))

    @property
    def fingerprint(self) -> str:
        """Of the operators whose state is kept: under another one the state is another program's, or another plan's."""
        return f"{self.usage.id_hash_sum:032x}"

    def has_fingerprint(self, fingerprint: str | None) -> bool:
        """Whether a fingerprint is this flow's; version 0.1 made shorter ones."""
        if fingerprint is None or len(fingerprint) != _OLD_FINGERPRINT_LENGTH:
            return fingerprint == self.fingerprint
        names = ",".join(sorted(o.id for o in self.stateful_operators()))
        return hashlib.sha256(names.encode()).hexdigest()[:_OLD_FINGERPRINT_LENGTH] == fingerprint

    def __getstate__(self) -> dict[str, Any]:
        """Tasks run operators in their order: what views they come from, and how the flow is changed, stays here."""
        return {
            **self.__dict__,
            "views": {},
            "usage": UsageCounts(order_numbers=self.usage.order_numbers),
            "derived_cache": {},
        }


_OLD_FINGERPRINT_LENGTH = 16


# In which round an operator runs, and which lookups need no exchange.
#
# A *round* (level) is a stage of the Spark job. An input is level 0; an operator with a key comes one level after its
# last source, because its rows must travel to the task that owns their hash; a lookup in the fresh state of an
# arrangement comes no earlier than the arrangement itself. Segments and sinks run where their source ran.
#
#     fully partitioned       Δ travels: each row meets the arrangement at the task that owns its key
#     partially partitioned   Δ stays: every task reads the whole arrangement (the seeds, 4.4.2 and 5.2)
#
# A lookup that *stays* is in its source's round. With n tasks it costs n times the arrangement's rows and changes
# instead of the delta's: right for a small side (a broadcast), and for any side that is on the tasks' own machine
# (`placing`).


BROADCAST_BYTES = 8 << 20
"""Up to here an arrangement is read whole by every task, wherever the tasks are."""

SlotSizes = Mapping[str, tuple[int, int]]
"""Slot → (rows, bytes)."""


def assign_rounds(
    dataflow: Dataflow,
    co_located: Set[str] = frozenset(),
    subset: Set[str] | None = None,
    second_round: Set[str] = frozenset(),
) -> dict[str, int]:
    """The round of each operator (of those `among`, as if there were no others); `later`: sources, and
    arrangements of their tables, that begin in the second one."""
    found: dict[str, int] = {}
    for name in dataflow.operators if subset is None else dataflow.sort_operators(subset):
        operator = dataflow.operators[name]
        level = max((found[s] for s in dataflow.input_operators(name) if s in found), default=int(name in second_round))
        if name not in co_located:
            level = max(
                [level + operator.needs_exchange, *(found[a] for a in operator.new_state_lookups if a in found)]
            )
        found[name] = level
    return found


def choose_broadcasts(dataflow: Dataflow, sizes: SlotSizes) -> frozenset[str]:
    """The lookups in base tables that are small enough to be read whole by every task."""
    return frozenset(
        name
        for name, o in dataflow.operators.items()
        if o.probed_arrangement is not None and is_broadcast(dataflow, o.probed_arrangement, sizes)
    )


def is_broadcast(dataflow: Dataflow, arrangement: str, sizes: SlotSizes) -> bool:
    """Whether a base table's arrangement is known to be small. A computed one may change in any round."""
    operator = dataflow.operators[arrangement]
    return operator.arranged_table is not None and 0 < sizes.get(slot_names(operator)[0], (0, 0))[1] <= BROADCAST_BYTES
