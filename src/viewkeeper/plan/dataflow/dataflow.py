"""The dataflow: all live views as one graph of operators and edges, and the assignment of operators to rounds.

A dataflow is an immutable value. `build` derives it from a catalog's views, or from the dataflow of the previous
catalog, with which it shares the unchanged parts.
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
"""An edge of the graph: (consumer, port, segment)."""


@dataclass(frozen=True)
class UsageCounts:
    """Reference counts that decide which operators, columns and filters the dataflow contains."""

    operators: Mapping[str, int] = field(default_factory=dict)
    """By operator: the number of views that need it. Operators that the dataflow adds itself are not listed."""
    columns: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By table and column: the number of views that use the column."""
    image_columns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By table image and column: the number of views that look the column up in the image."""
    filters: Mapping[int, Mapping[Expr | None, int]] = field(default_factory=dict)
    """By table and comparison, if the store can filter scans: the number of its segments; under None: all segments."""
    first_users: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By table image: the first view that needs it, and the image's index among the view's operators."""
    order_numbers: Mapping[str, int] = field(default_factory=dict)
    """By operator: a number that grows from sources to consumers."""
    id_hash_sum: int = 0
    """Sum of the hashes of the ids of all stateful operators."""


@dataclass(frozen=True)
class Dataflow:
    """The operators of a set of views, sources first, with their edges, table images and state slots."""

    operators: Mapping[str, Operator] = field(default_factory=dict)
    tables: Mapping[int, Table] = field(default_factory=dict)
    """Base tables by id, with internal column names and the comparisons that the store's scanner applies."""
    views: Mapping[int, CompiledView] = field(default_factory=dict)
    edges: Mapping[str, Sequence[Edge]] = field(default_factory=dict)
    """By operator: the edges from it to its consumers."""
    images: Mapping[int, Sequence[Operator]] = field(default_factory=dict)
    """By base table: its arrangements, in the order in which views came to need them."""
    used_columns: Mapping[int, tuple[Column, ...]] = field(default_factory=dict)
    """By base table: the columns that any view uses, and the primary key, in table order."""
    image_columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    """By table image: its columns, which are those that are looked up in it.

    One image of each table, the one by primary key or else the first, holds all used columns, for later backfills.
    """
    slots: Mapping[str, str] = field(default_factory=dict)
    """By state slot (the name in the manifest): the operator that owns it."""
    keyed_images: bool = False
    """Whether every table has an image by primary key, which a store without before-images needs."""
    can_filter_scans: bool = False
    """Whether the store can return only the rows that pass given comparisons."""
    usage: UsageCounts = UsageCounts()
    retired: frozenset[str] = frozenset()
    """Operators of this variant whose work a shared operator does (`shared_paths`)."""
    is_variant: bool = False
    """Whether operators may receive rows from other operators than the sources that their segments name."""

    @cached_property
    def derived_cache(self) -> dict[Any, Any]:
        """Values derived from sets of operators and tables, kept for the next batch."""
        return {}

    def input_operators(self, operator: str) -> Iterable[str]:
        """Return the operators whose output the operator receives through segments."""
        if not self.is_variant:
            return dict.fromkeys(segment.source for segment in self.operators[operator].segments())
        return self._variant_inputs.get(operator, ())

    @cached_property
    def _variant_inputs(self) -> Mapping[str, Sequence[str]]:
        """By operator: its input operators in a variant, where edges may differ from the sources of the segments."""
        inputs: dict[str, list[str]] = {}
        for source, edges in self.edges.items():
            for consumer in dict.fromkeys(edge[0] for edge in edges):
                inputs.setdefault(consumer, []).append(source)
        return inputs

    def reachable(self, from_: Iterable[str], candidates: Set[str]) -> frozenset[str]:
        """Return these operators and those of `candidates` that rows can reach from them."""
        found = set(from_)
        pending = list(found)
        while pending:
            name = pending.pop()
            operator = self.operators[name]
            images = () if operator.input_table is None else self.images.get(operator.input_table, ())
            for consumer in (*(edge[0] for edge in self.edges.get(name, ())), *(image.id for image in images)):
                if consumer in candidates and consumer not in found:
                    found.add(consumer)
                    pending.append(consumer)
        return frozenset(found)

    @cached_property
    def batch_operators(self) -> frozenset[str]:
        """The operators that take part in a batch; the others serve backfills or are retired."""
        return frozenset(
            n for n, operator in self.operators.items() if not operator.is_load_only and n not in self.retired
        )

    def sink(self, view: int) -> Sink:
        return self.views[view].sink

    def views_of(self, operator: str) -> frozenset[int]:
        """Return the views that need an operator."""
        return frozenset(view for view, compiled_view in self.views.items() if operator in compiled_view.operators)

    def dependencies(self, operator: Operator) -> Iterator[str]:
        """Return the operators that must run before this one."""
        return dependencies_of(operator)

    def upstream(self, of: Iterable[str]) -> set[str]:
        """Return these operators and all operators that they depend on."""
        found: set[str] = set()
        pending = list(of)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending.extend(dependencies_of(self.operators[name]))
        return found

    def sort_operators(self, operator_ids: Iterable[str]) -> list[str]:
        """Return these operators, sources first."""
        return sorted(operator_ids, key=self.usage.order_numbers.__getitem__)

    def stateful_operators(self) -> Iterator[Operator]:
        return (self.operators[name] for name in dict.fromkeys(self.slots.values()))

    @property
    def fingerprint(self) -> str:
        """Hash of the set of stateful operators.

        State under another fingerprint was written by another program or plan.
        """
        return f"{self.usage.id_hash_sum:032x}"

    def has_fingerprint(self, fingerprint: str | None) -> bool:
        """Whether the fingerprint is that of this dataflow; version 0.1 wrote shorter ones."""
        if fingerprint is None or len(fingerprint) != _OLD_FINGERPRINT_LENGTH:
            return fingerprint == self.fingerprint
        names = ",".join(sorted(o.id for o in self.stateful_operators()))
        return hashlib.sha256(names.encode()).hexdigest()[:_OLD_FINGERPRINT_LENGTH] == fingerprint

    def __getstate__(self) -> dict[str, Any]:
        """Leave out views, counts and caches: tasks only run operators in their order; the driver changes the
        dataflow."""
        return {
            **self.__dict__,
            "views": {},
            "usage": UsageCounts(order_numbers=self.usage.order_numbers),
            "derived_cache": {},
        }


_OLD_FINGERPRINT_LENGTH = 16


# Assignment of operators to rounds, and the lookups that need no exchange.
#
# A *round* is a stage of the Spark job. An input is in round 0. An operator with a key is one round after its last
# source, because its rows must be exchanged to the task that owns their hash. A lookup in the new state of an
# arrangement is in no earlier round than the arrangement itself. Segments and sinks run in the round of their source.
#
#     fully partitioned       Δ is exchanged: each row is probed at the task that owns its key
#     partially partitioned   Δ is not exchanged: every task reads the whole arrangement (the seeds, 4.4.2 and 5.2)
#
# A co-located lookup is in its source's round. With n tasks it costs n times the arrangement's rows and changes instead
# of the delta's. This is right for a small relation (a broadcast), and for any relation if all tasks run on one
# machine.


BROADCAST_BYTES = 8 << 20
"""Arrangements up to this size are broadcast: every task reads them whole, on whatever machine it runs."""

SlotSizes = Mapping[str, tuple[int, int]]
"""State slot → (rows, bytes)."""


def assign_rounds(
    dataflow: Dataflow,
    co_located: Set[str] = frozenset(),
    subset: Set[str] | None = None,
    second_round: Set[str] = frozenset(),
) -> dict[str, int]:
    """Return the round of each operator.

    `subset`: only these operators, as if there were no others. `co_located`: lookups that need no exchange.
    `second_round`: sources, and arrangements of their tables, that start in the second round.
    """
    rounds: dict[str, int] = {}
    for name in dataflow.operators if subset is None else dataflow.sort_operators(subset):
        operator = dataflow.operators[name]
        round_number = max(
            (rounds[s] for s in dataflow.input_operators(name) if s in rounds), default=int(name in second_round)
        )
        if name not in co_located:
            round_number = max(
                [
                    round_number + operator.needs_exchange,
                    *(rounds[a] for a in operator.new_state_lookups if a in rounds),
                ]
            )
        rounds[name] = round_number
    return rounds


def choose_broadcasts(dataflow: Dataflow, sizes: SlotSizes) -> frozenset[str]:
    """Return the lookups in base tables that are small enough to be broadcast."""
    return frozenset(
        name
        for name, o in dataflow.operators.items()
        if o.probed_arrangement is not None and is_broadcast(dataflow, o.probed_arrangement, sizes)
    )


def is_broadcast(dataflow: Dataflow, arrangement: str, sizes: SlotSizes) -> bool:
    """Whether a base table's arrangement is known to be small. A computed arrangement may change in any round."""
    operator = dataflow.operators[arrangement]
    return operator.arranged_table is not None and 0 < sizes.get(slot_names(operator)[0], (0, 0))[1] <= BROADCAST_BYTES
