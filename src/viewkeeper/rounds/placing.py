"""Where a Spark job's operators run: decided anew for each batch, from what changes and how large the state is.

*Live* operators are those that anything can reach in this batch; only they make rounds. A lookup *stays* where its
source ran (`plan.levels`) if every task can read the whole arrangement in the state that the lookup wants:

    its old state     the runs that the manifest lists, if they are few bytes or on the tasks' own machine (`near`)
    its fresh state   the same, if nothing reaches the arrangement, or if the driver arranges its few changes itself

A lookup that does not stay may still be *spread*: published runs can be read by any task, so where no fresh rows are
needed, those of a hot key are dealt out instead of all going to the task that owns it. So are changes of a base table
that none looks up in this batch: a run may have any of them. (Groups are summed up before they travel.)

A base table's changes stay too if all tasks are near and none looks them up in this batch: each task then leaves a run
of its share of the changes, not of the hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.operators.arrangement import Run, arrange
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.plan.levels import Sizes, is_small, levels
from viewkeeper.rounds.given import Given, LogRows, Rows, is_empty
from viewkeeper.rounds.site import Fed, Site

FEW_ROWS = 65_536
"""Changes of a table up to which the driver arranges them, for all tasks."""

ROWS_A_TASK = 100_000
"""Changed rows up to which a batch is one task: divided, its statements and stages would cost more than its rows."""
_TASKS_A_SLOT, _WORTH = 3, 2.5
"""Tasks for each that can run at once, at most: so that what is slow, or comes later, finds its share of the work. One
fewer if each would have less than so many times the rows that are worth a task: it would be an eighth of its time."""
_SETTING = "spark.viewkeeper.rowsPerTask"
_LITTLE = 32 << 20
"""Bytes for each slot up to which a later round has no more tasks than slots."""


def tasks(given: Mapping[str, Given], slots: int, spark: Any, finely: bool = False) -> int:
    """How many tasks a batch is divided into; as many as run at once if nobody knows how many rows it has. `finely`:
    the driver has to do with what each leaves."""
    counts = [g.count for g in given.values()]
    if None in counts:
        return slots
    rows = sum(c or 0 for c in counts)
    each = max(1, int(spark.sparkContext.getConf().get(_SETTING) or ROWS_A_TASK))
    most = _TASKS_A_SLOT * slots
    return min(max(1, -(-rows // each)), most if finely or rows >= _WORTH * each * most else most - slots)


def later_tasks(parts: int, slots: int, size: float | None) -> int:
    """Tasks of each round after the first, to the busiest of which so many bytes come (None: nobody knows).

    A task costs about as much as the sums of a million rows, and those are often all that travels. Where it is little
    there is a task for each slot, and never fewer: what is known is of the last batch, and this one may bring more."""
    return parts if size is None or size > slots * _LITTLE else min(parts, slots)


@dataclass(frozen=True)
class Placing:
    """`levels` has the live operators; `staying` those that need no exchange; `spread` those whose rows any
    task may take; `arranged` what the driver adds."""

    levels: Mapping[str, int]
    staying: frozenset[str]
    spread: frozenset[str]
    arranged: Mapping[str, Run]
    given: Mapping[str, Given]
    netted: frozenset[str]
    """Sources whose shares name a key twice: a round more, in which they meet by key."""


def place(site: Site, given: Mapping[str, Given], seeds: Iterable[Fed], sizes: Sizes, near: bool) -> Placing:
    """`site` is the driver's; `sizes` those of the published state, without what is loaded anew."""
    flow = site.flow
    given = {n: _at_hand(site, g) if is_few(g) else g for n, g in given.items()}
    begun = [n for n, g in given.items() if not is_empty(g)]
    live = flow.reached([*begun, *(consumer for consumer, _, _ in seeds)], site.active)
    arranged: dict[str, Run] = {}
    for name, source in given.items():
        operator = flow.operators[name]
        if operator.is_source and isinstance(source, Rows) and is_few(source):
            fed = site.images(operator, source.table)
            arranged |= {slots(flow.operators[image])[0]: arrange(delta) for image, _, delta in fed}

    def stays(lookup: Operator, name: str) -> bool:
        slot = slots(flow.operators[name])[0]
        if not near and not is_small(flow, name, sizes) and not (slot in arranged and slot not in sizes):
            return False
        return is_known(lookup, name)

    def is_known(lookup: Operator, name: str) -> bool:
        """Whether what it wants of an arrangement is published, or with every task."""
        return name not in lookup.looked_up or name not in live or slots(flow.operators[name])[0] in arranged

    asked = {a for n in live for a in flow.operators[n].looked_up}
    staying = frozenset(
        n
        for n in live
        if ((o := flow.operators[n]).probed and all(stays(o, a) for a in o.probed))
        or (o.arranges is not None and near and n not in asked)
    )
    spread = frozenset(
        n
        for n in live - staying
        if ((o := flow.operators[n]).seeks is not None and all(is_known(o, a) for a in o.probed))
        or (o.arranges is not None and n not in asked)
    )
    netted = frozenset(n for n, g in given.items() if isinstance(g, LogRows) and g.several)
    changed = (flow.operators[n].changes_of for n in netted)
    later = netted.union(i.id for t in changed if t is not None for i in flow.images.get(t, ()))
    return Placing(levels(flow, staying, live, later), staying, spread, arranged, given, netted)


def is_few(given: Given) -> bool:
    """Whether the driver takes care of these rows by itself."""
    return given.count is not None and given.count <= FEW_ROWS


def _at_hand(site: Site, given: Given) -> Given:
    return given if isinstance(given, Rows) else Rows(given.rows(site.duck, site.memory))
