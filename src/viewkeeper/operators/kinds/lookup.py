"""Lookup: the join's one step: `Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ`, and each ⋈ is a lookup of the delta's keys.

Weights multiply. Rows meet by hash only; the segment that follows compares the real keys. It is linear, keeps nothing,
and never makes more than a piece of its output at once. Of an `optional` relation (`operators.optional`) the lookup
itself compares all that decides on a match, so that it knows of the rows that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Defect
from viewkeeper.expressions.backends.vector_predicates import renamed
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model import types
from viewkeeper.model.names import HASH, PLACE
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import stacked
from viewkeeper.operators.delta_join import plan
from viewkeeper.operators.delta_join.optional_relations import Match, met_rows, numbered, padded
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.operator import Operator, Ports, Seek, Site
from viewkeeper.operators.segment import LATER, Segment
from viewkeeper.resources.memory import width
from viewkeeper.state.run import Among, Arrangement, hashes_of, weights_of
from viewkeeper.state.run_cache import meeting

# A threshold that moves: only rows between its old and its new value change sides.
#
#     Σᵢ wᵢ·[v op sᵢ] = 0   for every v beyond all the sᵢ, if Σ wᵢ = 0
#
# because there all comparisons say the same. So for the changes (sᵢ, wᵢ) of a scalar, with its old and its new value,
# the rows that lie between them are enough; if it was or becomes NULL, or comes or goes, those on the side where the
# comparison holds are. The rows lie in the order of v (`segments`); the segment that follows compares.


_SLACK = 2
"""Places by which rounding may be wrong."""

_LAST = 2**64 - 1


def range_lookup(
    probe: pa.Table, value: str, arrangement: Arrangement, columns: Sequence[str], reach: str, most: int
) -> Iterator[pa.Table]:
    """Each change of the scalar (its `value`) with each row whose comparison it may change, as in `join.lookup`."""
    probe = probe.filter(pc.is_valid(probe[value]))  # compared with NULL nothing holds
    low, high = _between(probe, reach)
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    step = max(1, most // max(1, int(probe.num_rows)))
    for run in arrangement.runs:
        start, stop = np.searchsorted(run.hashes, low, "left"), np.searchsorted(run.hashes, high, "right")
        for first in range(int(start), int(stop), step):
            rows = run.take(np.arange(first, min(first + step, int(stop))), columns)
            left = probe.select([*kept, WEIGHT]).take(pa.array(np.repeat(np.arange(probe.num_rows), rows.num_rows)))
            right = rows.take(pa.array(np.tile(np.arange(rows.num_rows), probe.num_rows)))
            weight = pc.multiply_checked(left[WEIGHT], right[WEIGHT])
            columned = [*(left[c] for c in kept), *(right[c] for c in columns), weight]
            yield pa.table(columned, names=[*kept, *columns, WEIGHT])


def _between(probe: pa.Table, reach: str) -> tuple[np.uint64, np.uint64]:
    if not probe.num_rows:
        return np.uint64(1), np.uint64(0)
    places = hashes_of(probe)
    low, high = int(places.min()) - _SLACK, int(places.max()) + _SLACK
    if int(weights_of(probe).sum()) != 0:
        low, high = (low, _LAST) if reach == "above" else (0, high)
    return np.uint64(low), np.uint64(high)


MET = Column(plan.MET, types.BOOLEAN, nullable=False)
"""Of a lookup in an optional relation: whether a row was met."""

_STEPS = {"left": "or NULLs", "anti": "without a match"}
_MANY = 1.05
"""Rows a probe from which it is told how many."""
_TITLES = {"": "look up", "left": "outer look-up of", "anti": "rows without a match in"}


@dataclass(frozen=True)
class Lookup(Operator):
    """Probe rows times the rows of an arrangement with the same hash.

    `fresh`: the arrangement with this batch's changes, else as the last batch left it. `take` pairs an arrangement's
    column with the name that it gets here.
    """

    probe: tuple[Segment, ...]
    arrangement: str
    fresh: bool
    take: tuple[tuple[str, Column], ...]
    load: bool = False
    """Whether this lookup also runs in a first load on Spark (the path of the join's last relation)."""
    reach: str = field(default="", metadata={LATER: True})
    """`above`, `below`: not rows of the same key but those whose comparison with the probe's value (on this side of it)
    differs from that with another probe's: see `thresholds`."""
    optional: str = ""
    """`left`, `anti`: rows without a match stay, with NULLs; or only they stay."""
    match: tuple[Expr, ...] = ()
    """Of an optional relation: the conditions, over the columns of both sides, under which a row has a match."""
    flag: bool = False
    """Whether a column `met` tells rows with a match from the others."""
    kind: ClassVar[str] = "lookup"
    may_cancel: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.probe,)

    @property
    def columns(self) -> tuple[Column, ...]:
        taken = () if self.optional == "anti" else tuple(c for _, c in self.take)
        return (*self.probe[0].columns, *taken, *((MET,) if self.flag else ()))

    @property
    def looked_up(self) -> tuple[str, ...]:
        return (self.arrangement,) if self.fresh else ()

    @property
    def reads(self) -> Mapping[str, frozenset[str]]:
        return {self.arrangement: frozenset(name for name, _ in self.take)}

    @property
    def probes(self) -> str:
        return self.arrangement

    @property
    def seeks(self) -> Seek | None:
        return None if self.reach else Seek(self.arrangement, self.fresh, self.take, self.optional, self.match)

    def takes_part(self, on_spark: bool) -> bool:
        return on_spark and self.load

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        if not ports[0]:
            return
        slot = f"{self.arrangement}/0"
        arrangement = site.fresh(slot) if self.fresh else site.old(slot)
        if self.optional:
            yield from self._optional(site, ports, arrangement)
            return
        if not arrangement.runs:
            return
        taken = [name for name, _ in self.take]
        names = [*(c.name for c in self.columns), WEIGHT]
        if not self.reach:
            arrangement = arrangement.near(np.concatenate([hashes_of(table) for table in ports[0]]))
        each = sum(run.width(taken) for run in arrangement.runs) / len(arrangement.runs)
        among = self._met_later(site)
        for piece in site.memory.pieces(stacked(ports[0])):
            probe = piece.combine_chunks()
            found = self._found(probe, arrangement, taken, site.memory.rows(width(probe) + each), among)
            yield from (rows.rename_columns(names) for rows in found)

    def _optional(self, site: Site, ports: Ports, arrangement: Arrangement) -> Iterator[pa.Table]:
        taken, theirs = [name for name, _ in self.take], [c for _, c in self.take]
        mine = [c.name for c in self.probe[0].columns]
        names = [*(c.name for c in self.columns), WEIGHT]
        match, is_left = Match(self.match), self.optional == "left"
        if arrangement.runs:
            arrangement = arrangement.near(np.concatenate([hashes_of(table) for table in ports[0]]))
        each = sum(run.width(taken) for run in arrangement.runs) / max(1, len(arrangement.runs))
        for piece in site.memory.pieces(stacked(ports[0])):
            probe = piece.combine_chunks()
            net = np.zeros(probe.num_rows, np.int64)
            found = lookup(numbered(probe), arrangement, taken, site.memory.rows(width(probe) + each))
            both = (rows.rename_columns([*mine, PLACE, *(c.name for c in theirs), WEIGHT]) for rows in found)
            for met in met_rows(site.duck, match, both, net):
                if is_left:
                    yield self._flagged(met, True).select(names)
            rest = probe.filter(pa.array(net == 0))
            if rest.num_rows:
                yield self._flagged(padded(rest, theirs) if is_left else rest, False).select(names)

    def _flagged(self, rows: pa.Table, is_met: bool) -> pa.Table:
        if not self.flag:
            return rows
        return rows.append_column(MET.name, pa.array(np.full(rows.num_rows, is_met)))

    def _met_later(self, site: Site) -> Among | None:
        """Rows that do not meet what is asked of them next, of what is taken alone, need not be taken."""
        theirs = {mine.name: name for name, mine in self.take}
        asked = [renamed(condition, theirs) for condition in site.asked_of(self)]
        conditions = [condition for condition in asked if condition is not None]
        return partial(meeting, conditions) if conditions else None

    def _found(
        self, probe: pa.Table, arrangement: Arrangement, taken: Sequence[str], most: int, among: Among | None
    ) -> Iterable[pa.Table]:
        if not self.reach:
            return lookup(probe, arrangement, taken, most, among)
        key = self.probe[0].key
        if key is None:
            raise Defect(f"{self.id} is probed without a key.")
        return range_lookup(probe, key[0], arrangement, taken, self.reach, most)

    def describe(self, told: Told) -> str:
        state = "new" if self.fresh else "old"
        where = f"#{told.numbers[self.arrangement]}"
        if (table := self._table(told)) is not None:
            where += f" {table}"
        take = ", ".join(f"{name} AS {c.name}" for name, c in self.take)
        probe = ", ".join(self.probe[0].key or ())
        if self.reach:
            return f"rows of {where}, {state} state, that a move of {probe} passes, taking {take or 'nothing'}"
        if self.optional == "anti":
            return f"anti lookup ({probe}) in {where}, {state} state: rows without a match"
        if self.optional:
            return f"outer lookup ({probe}) in {where}, {state} state, taking {take or 'nothing'}"
        return f"lookup ({probe}) in {where}, {state} state, taking {take or 'nothing'}"

    def step(self, told: Told) -> str:
        table, probe = self._table(told), self.probe[0]
        key = ", ".join(told.given(probe, k) for k in probe.key or ())
        how = f" {_STEPS[self.optional]}" if self.optional else ""
        where = f"#{told.numbers[self.arrangement]}" + (f" {table}" if table is not None else "")
        rows = told.fan_out.get(self.arrangement)
        fan_out = f", about {rows:,.1f} rows a probe" if rows is not None and rows >= _MANY else ""
        return f"({key}) in {where}{how}, {'new' if self.fresh else 'old'} state{fan_out}"

    def reason(self, told: Told) -> str:
        arranged = told.flow.operators[self.arrangement]
        if arranged.arranges is not None:
            primary = {k.column for k in told.flow.tables[arranged.arranges].key}
            if primary <= set(arranged.arranged_by):
                return "at most one row a probe: the key is unique"
        if self.reach:
            return "a threshold: only the rows between its old and its new value, not all rows"
        if not self.probe[0].key:
            return "no equality to look up by: every probe meets all rows, so the cost follows the data"
        rows = told.fan_out.get(self.arrangement)
        return "rows a probe: not known yet" if rows is None else f"about {rows:,.1f} rows a probe"

    def drawn(self, told: Told) -> Drawn:
        table, number, probe = self._table(told), told.numbers[self.arrangement], self.probe[0]
        return Drawn(
            title=f"{_TITLES[self.optional]} {table or 'state'}",
            lines=(f"in #{number}, {'new' if self.fresh else 'old'}",),
            table=table,
            key=tuple(told.given(probe, k) for k in probe.key or ()),
            reads=number,
        )

    def made_of(self, name: str) -> tuple[str, Expr] | None:
        taken = next(((theirs, mine) for theirs, mine in self.take if mine.name == name), None)
        if taken is None:
            return super().made_of(name)
        return self.arrangement, column(taken[0], taken[1].type)

    def traced(self, text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        taken = {mine.name: text(self.arrangement, column(theirs, mine.type)) for theirs, mine in self.take}
        return {**super().traced(text), **taken}

    def _table(self, told: Told) -> str | None:
        """The name of the base table that it looks in, if it is one."""
        table = told.flow.operators[self.arrangement].arranges
        return None if table is None else told.names[table]


def lookup(
    probe: pa.Table, arrangement: Arrangement, columns: Sequence[str], most: int, among: Among | None = None
) -> Iterator[pa.Table]:
    """Each probe row with each row of the same hash: the probe's columns, the arrangement's `columns`, and `¤w`.

    At most so many rows at a time: what follows is linear, so it does with each piece what it would do with the sum.
    """
    kept = [name for name in probe.column_names if name not in (HASH, WEIGHT)]
    for asked, rows in arrangement.probed(hashes_of(probe), columns, most, among):
        left = probe.select([*kept, WEIGHT]).take(pa.array(asked))
        weight = pc.multiply_checked(left.column(WEIGHT), rows.column(WEIGHT))
        yield pa.table(
            [*(left.column(c) for c in kept), *(rows.column(c) for c in columns), weight],
            names=[*kept, *columns, WEIGHT],
        )
