"""Minimum and maximum of groups, old and new, from the counts of their values.

A run of values is sorted by (`_h`, value), so the extremes of a group lie at the ends of its range in each run, below
values that later runs took back. So read a window at the ends only, add the delta, and see how far that can be trusted:

    run 1   │3 4 7 9│ … 200,000 more           bound = 9: every row below 9 has been read
    run 2   │3⁻ 4⁻│                            3 and 4 are gone, 7 is left and lies below the bound: min = 7

A group whose extreme does not lie strictly inside the bound is read again with a wider window. So the cost follows
the delta and the retractions that are not merged yet, not the group's size.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.arrangement import Arrangement, Hashes, distinct_hashes, hashes_of, spans
from viewkeeper.operators.duck import Duck, quote
from viewkeeper.plan.dataflow import HASH, AggregateSpec

_FIRST_WINDOW = 64
_GROWTH = 16


def change(
    duck: Duck, spec: AggregateSpec, argument: str, state: Arrangement, delta: pa.Table, groups: pa.Table
) -> pa.Table:
    """For each group of `groups` (with keys and `_h`): keys, _min_<argument>_o, …_n, _max_<argument>_o, …_n."""
    keys = [k.name for k in spec.keys]
    delta = delta.select([*keys, argument, WEIGHT, HASH])
    if not state.num_rows or not groups.num_rows:
        return duck.run(_whole_sql(spec, argument), old=delta.slice(0, 0), delta=delta)
    functions = frozenset(m.function for m in spec.measures if m.argument == argument)
    groups = groups.select([*keys, HASH])
    found: list[pa.Table] = []
    window = _FIRST_WINDOW
    while groups.num_rows:
        old, lows, highs = _ends(state, argument, distinct_hashes(groups), window, functions)
        old = old.select(delta.column_names)
        if not found and not lows.num_rows and not highs.num_rows:
            return duck.run(_whole_sql(spec, argument), old=old, delta=delta)
        seen = duck.run(_ends_sql(spec, argument), old=old, delta=delta, lows=lows, highs=highs, groups=groups)
        more = seen.column("_more").to_numpy()
        found.append(seen.filter(pa.array(~more)).select(_columns(spec, argument)))
        groups = seen.filter(pa.array(more)).select(groups.column_names)
        delta = delta.filter(pa.array(np.isin(hashes_of(delta), hashes_of(groups))))
        window *= _GROWTH
    return pa.concat_tables(found)


def _ends(
    state: Arrangement, argument: str, touched: Hashes, window: int, functions: frozenset[str]
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The rows at the ends of each hash's range; and for ranges not read whole, the innermost values read."""
    rows: list[pa.Table] = []
    lows: list[pa.Table] = []
    highs: list[pa.Table] = []
    for run in state.runs:
        start, stop = run.ranges(touched)
        size = stop - start
        head = np.minimum(size, window if "Min" in functions else 0)
        tail = np.minimum(size - head, window if "Max" in functions else 0)
        places = np.concatenate([spans(start, head), spans(stop - tail, tail)])
        rows.append(run.take(places))
        partial = head + tail < size
        for bounds, wanted, inner in ((lows, "Min", start + head - 1), (highs, "Max", stop - tail)):
            some = partial if wanted in functions else np.zeros(len(partial), np.bool_)
            bounds.append(run.rows.select([argument, HASH]).take(pa.array(inner[some])))
    return _together(rows), _together(lows), _together(highs)


def _together(tables: list[pa.Table]) -> pa.Table:
    names = tables[0].column_names
    return pa.concat_tables([t.select(names) for t in tables])


def _columns(spec: AggregateSpec, argument: str) -> list[str]:
    return [*(k.name for k in spec.keys), HASH, *(f"_{f}_{argument}_{s}" for f in ("min", "max") for s in "on")]


def _summed_sql(spec: AggregateSpec, argument: str) -> str:
    """Each value's weight, old and new."""
    groups = ", ".join(quote(c) for c in [*(k.name for k in spec.keys), HASH, argument])
    both = f"SELECT {groups}, 0 AS _x, _w AS _d FROM delta UNION ALL SELECT {groups}, _w, 0 FROM old"
    return f"SELECT {groups}, sum(_x) AS _o, sum(_x) + sum(_d) AS _n FROM ({both}) GROUP BY {groups}"


@lru_cache(maxsize=1024)
def _whole_sql(spec: AggregateSpec, argument: str) -> str:
    """The extremes of every group, when all its rows are there."""
    keys = [*(quote(k.name) for k in spec.keys), HASH]
    v = quote(argument)
    shown = keys + [
        f"{f}({v}) FILTER (WHERE _{s} > 0) AS {quote(f'_{f}_{argument}_{s}')}" for f in ("min", "max") for s in "on"
    ]
    return f"SELECT {', '.join(shown)} FROM ({_summed_sql(spec, argument)}) GROUP BY {', '.join(keys)}"


@lru_cache(maxsize=1024)
def _ends_sql(spec: AggregateSpec, argument: str) -> str:
    """The same from the ends, with `_more`: the bounds do not prove it. Groups are asked for by name, since a group
    that shares its hash with another may have no row in the windows at all."""
    keys = [quote(k.name) for k in spec.keys]
    v = quote(argument)
    inside = {"min": f"(_low IS NULL OR {v} < _low)", "max": f"(_high IS NULL OR {v} > _high)"}
    extremes = [
        f"{f}({v}) FILTER (WHERE _{s} > 0 AND {inside[f]}) AS {quote(f'_{f}_{argument}_{s}')}"
        for f in ("min", "max")
        for s in "on"
    ]
    unproven = " OR ".join(
        f"({bound} IS NOT NULL AND {quote(f'_{f}_{argument}_{s}')} IS NULL)"
        for f, bound in (("min", "_low"), ("max", "_high"))
        for s in "on"
    )
    same = " AND ".join([f"g.{HASH} = e.{HASH}", *(f"g.{k} IS NOT DISTINCT FROM e.{k}" for k in keys)])
    grouped = ", ".join([*keys, HASH])
    shown = ", ".join(
        [*(f"g.{k}" for k in keys), f"g.{HASH}", *(quote(c) for c in _columns(spec, argument)[len(keys) + 1 :])]
    )
    return (
        f"WITH s AS ({_summed_sql(spec, argument)}),"
        f" l AS (SELECT {HASH}, min({v}) AS _low FROM lows GROUP BY {HASH}),"
        f" h AS (SELECT {HASH}, max({v}) AS _high FROM highs GROUP BY {HASH}),"
        f" e AS (SELECT {', '.join([grouped, *extremes])} FROM s LEFT JOIN l USING ({HASH}) LEFT JOIN h USING ({HASH})"
        f" GROUP BY {grouped}),"
        f" g AS (SELECT DISTINCT {grouped} FROM groups)"
        f" SELECT {shown}, {unproven} AS _more FROM g LEFT JOIN e ON {same}"
        f" LEFT JOIN l ON g.{HASH} = l.{HASH} LEFT JOIN h ON g.{HASH} = h.{HASH}"
    )
