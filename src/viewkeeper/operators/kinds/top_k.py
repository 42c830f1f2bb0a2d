"""TopK: the first rows of all rows, from a buffer that knows a little more than it shows.

The order is total (it ends with every column), so the first rows are a function of the multiset. The buffer holds the
first rows of the input: every row that is not in it comes after its last one. A delta's rows after the last one change
nothing that is shown and only go to the state; the others are added to the buffer. So a batch costs its own size and
the buffer's. Only when retractions have emptied the buffer below what must be shown, and the input has more, is the
buffer filled again from all rows; the margin makes that rare.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction
from viewkeeper.model.delta import identical, identical_at
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import joined, stacked
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidate, consolidation
from viewkeeper.state.hash_index import Places
from viewkeeper.state.run import Arrangement, Run, arrange, weights_of

# Rows in order, without a statement: Arrow sorts a thousand rows in a quarter of the time that one takes.
#
# It puts integers, dates, times, decimals and strings (by their bytes) in the order in which DuckDB has them. Floats
# (NaN, the two zeros), other types, and orders by more than columns are left to a statement.


_MOST_ROWS = 1 << 15
_TERM = r'"(\w+)" (ASC|DESC) NULLS (FIRST|LAST)'
_ORDER = re.compile(f"{_TERM}(?:, {_TERM})*")
_WAYS = {"ASC": "ascending", "DESC": "descending"}
_NULLS = {"FIRST": "at_start", "LAST": "at_end"}

Key = tuple[str, str, str]


def places_in_order(rows: pa.Table, order: str) -> Places | None:
    """Where the rows lie that an ORDER BY clause names first, second, …; of equal ones those that are first now. None
    where that takes a statement."""
    if not can_be_ordered(rows, order):
        return None
    keys = _keys(order)
    found: Places = pc.sort_indices(rows, sort_keys=list(keys)).to_numpy().astype(np.int64)
    return found


def can_be_ordered(rows: pa.Table, order: str) -> bool:
    """Whether that takes no statement, of these rows and of fewer."""
    keys = _keys(order)
    if not keys or rows.num_rows > _MOST_ROWS:
        return False
    columns = [name for name in rows.column_names if name not in (HASH, WEIGHT)]
    return {name for name, _, _ in keys} <= {*columns} and all(_is_sorted(rows.schema.field(n).type) for n in columns)


@lru_cache(maxsize=1024)
def _keys(order: str) -> tuple[Key, ...]:
    """Each column once, with the way it goes; none if there is anything but columns."""
    if _ORDER.fullmatch(order) is None:
        return ()
    found: dict[str, Key] = {}
    for name, way, nulls in re.findall(_TERM, order):
        found.setdefault(name, (name, _WAYS[way], _NULLS[nulls]))
    return tuple(found.values())


def _is_sorted(kind: pa.DataType) -> bool:
    known = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal128, pa.types.is_string)
    return any(is_known(kind) for is_known in known)


MARGIN = 1_000
"""Rows that a full buffer holds beyond those that are shown."""
_IN_ORDER, _COPIES = "in order", "copies"


@dataclass(frozen=True)
class TopK(Operator):
    """ORDER BY … LIMIT over all rows: the first `count` after `offset`, in a total order (an ORDER BY clause).

    State: all rows, and the buffer.
    """

    source: tuple[Segment, ...]
    order: str
    count: int
    offset: int
    kind: ClassVar[str] = "topk"
    stateful: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def slots(self) -> int:
        return 2

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        """The first rows of all: nothing to divide."""
        if ports[0]:
            states = site.state(self)
            output, added, buffer = step(site.duck, self, states, joined(ports[0]))
            runs = [arrange(delta) for delta in added]
            if runs[1].num_rows:
                states[1].plus(runs[1]).remember(_IN_ORDER, buffer)
            site.add(self, runs)
            yield output

    def full(self, duck: Duck, states: Sequence[Arrangement]) -> pa.Table:
        names = [*(c.name for c in self.columns), WEIGHT]
        rows = consolidate(duck, states[1].rows([*names[:-1]]))
        return _shown(self, duck.run(f"FROM input ORDER BY {self.order}", input=rows)).select(names)

    def describe(self, told: Told) -> str:
        offset = f" after {self.offset}" if self.offset else ""
        return f"top {self.count}{offset} by {self.order}"

    def reason(self, told: Told) -> str:
        return "keeps all rows: when one of the first goes, the next takes its place; a margin answers most batches"

    def drawn(self, told: Told) -> Drawn:
        return Drawn(f"top {self.count}", (f"after {self.offset}",) if self.offset else ())


def step(
    duck: Duck, operator: TopK, states: Sequence[Arrangement], delta: pa.Table
) -> tuple[pa.Table, list[pa.Table], pa.Table]:
    """The output's delta; what to add to the state: the input's delta, then the buffer's; and the buffer in order."""
    everything, held = states
    delta = consolidate(duck, delta)
    names = delta.column_names
    old = _buffer(duck, operator, held).select(names) if held.runs else delta.slice(0, 0)
    total = _weight(everything)
    complete = int(weights_of(old).sum()) == total
    new, came = _plus(duck, operator, old, delta, complete)
    weights = weights_of(new)
    if len(weights) and weights.min() <= 0:
        raise Contradiction("A row of a top-k occurs fewer than no times.")
    needed = operator.count + operator.offset
    if weights.sum() < needed and weights.sum() < total + weights_of(delta).sum():
        rows = pa.concat_tables([everything.rows().select(names), delta]) if everything.runs else delta
        filled = f"SELECT * FROM input ORDER BY {operator.order} LIMIT {needed + MARGIN}"
        new, came = duck.run(filled, input=consolidate(duck, rows.combine_chunks())), None
    elif new.num_rows > 2 * (needed + MARGIN):
        new, came = new.slice(0, needed + MARGIN), None
    if came is not None and not came.num_rows:
        return came.drop_columns([HASH]), [delta, came], new
    output = _minus(duck, *(_shown(operator, rows) for rows in (new, old)))
    return output.drop_columns([HASH]), [delta, _minus(duck, new, old) if came is None else came], new


def _buffer(duck: Duck, operator: TopK, held: Arrangement) -> pa.Table:
    """The buffer, in order."""
    found = held.remembered(_IN_ORDER)
    if found is None:
        found = _ordered(duck, operator, held.rows())
        held.remember(_IN_ORDER, found)
    return found


def _ordered(duck: Duck, operator: TopK, rows: pa.Table) -> pa.Table:
    """The rows, consolidated, in order."""
    if can_be_ordered(rows, operator.order):
        whole = consolidate(duck, rows)
        return whole.take(pa.array(places_in_order(whole, operator.order)))
    return duck.run(consolidation(rows.schema, f" ORDER BY {operator.order}"), delta=rows)


def _plus(
    duck: Duck, operator: TopK, old: pa.Table, delta: pa.Table, complete: bool
) -> tuple[pa.Table, pa.Table | None]:
    """The buffer plus the delta, in order, without the delta's rows that come after the buffer's last one; and those of
    the delta that do not, if that is known."""
    names = delta.column_names
    both = stacked([delta, old.select(names)]).combine_chunks()
    places = places_in_order(both, operator.order)
    if places is None:
        return duck.run(_added(operator, names, complete), buffer=old, delta=delta), None
    # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
    is_old = places >= delta.num_rows
    if not complete:
        places = places[: int(np.flatnonzero(is_old)[-1]) + 1 if is_old.any() else 0]
    came = np.sort(places[places < delta.num_rows])
    if not len(came):
        return old, delta.slice(0, 0)
    # Neither side has a row twice, and of equal ones the delta's stands right before the buffer's.
    pairs = np.flatnonzero((places[:-1] < delta.num_rows) & (places[1:] >= delta.num_rows))
    again = 1 + pairs[identical_at(both, places[pairs + 1], places[pairs], but=WEIGHT)]
    start = np.delete(np.arange(len(places)), again)
    summed = np.add.reduceat(weights_of(both)[places], start)
    left = np.flatnonzero(summed)
    new = both.take(pa.array(places[start[left]])).set_column(names.index(WEIGHT), WEIGHT, pa.array(summed[left]))
    return new, delta if len(came) == delta.num_rows else delta.take(pa.array(came))


def _added(operator: TopK, names: Sequence[str], complete: bool) -> str:
    """The same as a statement."""
    columns = ", ".join(quoted(n) for n in names if n != WEIGHT)
    both = f"SELECT {columns}, ¤w, 0 AS new FROM buffer UNION ALL SELECT {columns}, ¤w, 1 AS new FROM delta"
    if complete:
        kept = f"({both})"
    else:
        # Of equal rows the delta's come first: one that equals the buffer's last row belongs to it.
        placed = f"SELECT *, row_number() OVER (ORDER BY {operator.order}, new DESC) AS place FROM ({both})"
        last = "max(place) FILTER (new = 0) OVER ()"
        kept = f"(SELECT * FROM (SELECT *, {last} AS last FROM ({placed})) WHERE place <= last)"
    shown = ", ".join("sum(¤w)::BIGINT AS ¤w" if n == WEIGHT else quoted(n) for n in names)
    return f"SELECT {shown} FROM {kept} GROUP BY {columns} HAVING sum(¤w) <> 0 ORDER BY {operator.order}"


def _shown(operator: TopK, rows: pa.Table) -> pa.Table:
    """What LIMIT and OFFSET leave of rows in order, a row counting as often as it occurs."""
    last = operator.offset + operator.count
    rows = rows.slice(0, last)  # each occurs at least once
    ends = np.cumsum(weights_of(rows))
    starts = ends - weights_of(rows)
    weights = np.clip(np.minimum(ends, last) - np.maximum(starts, operator.offset), 0, None)
    shown = rows.set_column(rows.column_names.index(WEIGHT), WEIGHT, pa.array(weights, pa.int64()))
    return shown.filter(pa.array(weights > 0))


def _minus(duck: Duck, new: pa.Table, old: pa.Table) -> pa.Table:
    is_plain = not any(pa.types.is_nested(kind) for kind in new.schema.types)
    if is_plain and new.num_rows == old.num_rows and identical(new, old.select(new.column_names)).all():
        return new.slice(0, 0)  # both are in order
    place = old.column_names.index(WEIGHT)
    gone = old.set_column(place, WEIGHT, pa.array(-weights_of(old)))
    return consolidate(duck, pa.concat_tables([new, gone.select(new.column_names)]).combine_chunks())


def _weight(arrangement: Arrangement) -> int:
    """How many rows the multiset has, repetitions counted."""
    return sum(map(_copies, arrangement.runs))


def _copies(run: Run) -> int:
    found = run.kept.get(_COPIES)
    if found is None:
        found = int(weights_of(run.rows).sum()) if WEIGHT in run.rows.column_names else run.num_rows
        run.kept[_COPIES] = found
    return int(found)
