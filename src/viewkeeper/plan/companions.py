"""What a view's lookups are made together with, as EXPLAIN tells it.

shared paths
  changes of lineitem, of 17 views: orders by (o_orderkey) with 8 others, customer by (c_custkey) with 6 others
  changes of orders, of 12 views: customer by (c_custkey) with 6 others, lineitem by (l_orderkey) alone
lookups a batch of all its tables: 4 by itself, 1.4 shared (a lookup for n views counts 1/n)
chosen: shared, about 5.9 ms of a batch of 10,000 changed rows, instead of by itself, about 10.5 ms

By itself a view has a statement before each lookup and one at the end; together all views of a table's changes have one
statement for their conditions, and each its own at the end. Seconds are of one core, from TPC-H's 22 views at scale 1:
98 statements and 74 lookups took 285 ms, 2 statements and 20 lookups 52 ms, of 25,000 changed rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from viewkeeper.operators.routes import routes_among
from viewkeeper.operators.stretches import steps_of
from viewkeeper.plan.flow import Flow
from viewkeeper.plan.paths import shared
from viewkeeper.plan.wishes import Wishes

EXPECTED = 10_000
"""Changed rows of the batch that is spoken of."""
_STATEMENT = 1e-3
_LOOKUP = 2e-4 + EXPECTED * 9e-8


def companions(flow: Flow, view: int, wishes: Wishes, names: Mapping[int, str]) -> list[str]:
    """The lines of EXPLAIN about a view's shared lookups; none if nobody shares one with it."""
    if view in wishes.apart:
        return ["paths: by itself (share = false)"]
    together = shared(flow, frozenset(flow.used), wishes)
    users = _users(flow)
    lines, alone, in_parts = [], 0, 0.0
    apart_seconds = together_seconds = 0.0
    for operator in routes_among(together.operators.values()):
        views = [users[way[0]] for way in together.consumers[operator.id]]
        mine = sum(1 << i for i, of in enumerate(views) if view in of)
        if not mine:
            continue
        told = []
        for step in steps_of(operator.stretch):
            if not step.exits & mine:
                continue
            others = len(frozenset().union(*(of for i, of in enumerate(views) if step.exits >> i & 1)) - {view})
            arranged = flow.operators[step.arrangement]
            table = names[arranged.arranges] if arranged.arranges is not None else arranged.id
            told.append(f"{table} by ({', '.join(step.by)}) {_with(others)}")
            alone, in_parts = alone + 1, in_parts + 1 / (1 + others)
            together_seconds += _LOOKUP / (1 + others)
        everyone = len(frozenset().union(*views))
        apart_seconds += len(told) * (_LOOKUP + _STATEMENT) + _STATEMENT
        together_seconds += _STATEMENT / everyone + _STATEMENT
        if told and everyone > 1:
            table = names[flow.operators[operator.delta.source].changes_of or 0]
            lines.append(f"  changes of {table}, of {everyone} views: {', '.join(told)}")
    if not lines:
        return []
    estimate = f"{alone} by itself, {in_parts:.1f} shared (a lookup for n views counts 1/n)"
    seconds = f"about {together_seconds * 1e3:.1f} ms of a batch of {EXPECTED:,} changed rows"
    chosen = f"  chosen: shared, {seconds}, instead of by itself, about {apart_seconds * 1e3:.1f} ms"
    return ["shared paths", *lines, f"  lookups a batch of all its tables: {estimate}", chosen]


def _with(others: int) -> str:
    return f"with {others} other{'s' if others > 1 else ''}" if others else "alone"


def _users(flow: Flow) -> Mapping[str, frozenset[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for view, made in flow.views.items():
        for name in made.operators:
            found[name].add(view)
    return {name: frozenset(views) for name, views in found.items()}
