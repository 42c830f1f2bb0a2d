"""Minimum and maximum of groups, old and new, from the counts of their values."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from viewkeeper.operators.arrangement import Arrangement, Hashes
from viewkeeper.operators.duck import Duck, quote
from viewkeeper.plan.dataflow import AggregateSpec


def change(
    duck: Duck, spec: AggregateSpec, argument: str, state: Arrangement, delta: pa.Table, touched: Hashes
) -> pa.Table:
    """For each group of the hashes `touched`: keys, _min_<argument>_o, …_n, _max_<argument>_o, …_n."""
    delta = delta.select([*(k.name for k in spec.keys), argument, "_w", "_h"])
    old = state.slice(touched) if state.runs else delta.slice(0, 0)
    return duck.run(_sql(spec, argument), old=old.select(delta.column_names), delta=delta)


@lru_cache(maxsize=1024)
def _sql(spec: AggregateSpec, argument: str) -> str:
    keys = [quote(k.name) for k in spec.keys]
    v = quote(argument)
    groups = ", ".join([*keys, v])
    both = f"SELECT {groups}, 0 AS _x, _w AS _d FROM delta UNION ALL SELECT {groups}, _w, 0 FROM old"
    summed = f"SELECT {groups}, sum(_x) AS _o, sum(_x) + sum(_d) AS _n FROM ({both}) GROUP BY {groups}"
    sides = (
        f"{f}({v}) FILTER (WHERE _{s} > 0) AS {quote(f'_{f}_{argument}_{s}')}" for f in ("min", "max") for s in "on"
    )
    return f"SELECT {', '.join([*keys, *sides])} FROM ({summed})" + (f" GROUP BY {', '.join(keys)}" if keys else "")
