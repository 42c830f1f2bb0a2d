"""The statements of an aggregate. Each is text made once for a spec; DuckDB prepares it once.

vectors  rows → one vector a group, and bucket rows
values   rows → (group, value, weight)
flips    values whose weight leaves or reaches zero
sums     old and delta vectors → one row a touched group with both sides: _n_o, _n_n, <accumulator>_o, …
read     such rows → −old +new of the measures, with `_bad`: −1 for a negative group, i for measure i out of range
"""

from __future__ import annotations

from functools import lru_cache

from viewkeeper.model import types
from viewkeeper.operators import exact, finish
from viewkeeper.operators.duck import quote
from viewkeeper.operators.measures import Accumulator, layout, raw
from viewkeeper.plan.dataflow import AggregateSpec

_GROUP_BITS = 0xFFFF_0000_0000_0000


@lru_cache(maxsize=1024)
def vectors(spec: AggregateSpec, fed: tuple[Accumulator, ...], distinct: bool) -> str:
    """Accumulators that are not fed get zeros, so every vector has the same columns."""
    plan = layout(spec)
    keys = _keys(spec)
    sums = [("0" if distinct else "coalesce(sum(_w), 0)") + "::BIGINT AS _n"]
    zeros = ["0::BIGINT AS _n"]
    for accumulator in plan.plain:
        for name, term in zip(accumulator.columns, accumulator.terms(), strict=True):
            summed = f"coalesce(sum({term} * _w), 0)" if accumulator in fed else "0"
            sums.append(f"{summed}::{accumulator.type} AS {quote(name)}")
            zeros.append(f"0::{accumulator.type} AS {quote(name)}")
    main = f"SELECT {_list(*keys, *sums)} FROM rows{_group_by(keys)}"
    if not plan.bucketed:
        if spec.keys and not plan.values:
            # A group whose values changed is touched, even where its vector did not: only without them zeros may go.
            main = f"SELECT * FROM ({main}) WHERE {' OR '.join(f'{quote(c)} <> 0' for c in plan.additive)}"
        return f"SELECT *, {key_hash(spec)} AS _h FROM ({main})"
    parts = [f"SELECT *, (-1)::INTEGER AS _b, 0::DECIMAL(38,0) AS _x FROM ({main})"]
    for i, accumulator in enumerate(plan.bucketed):
        column = quote(raw(accumulator.argument))
        split = exact.terms if accumulator.kind == "exact" else exact.square_terms
        for bucket, term in split(column) if accumulator in fed else ():
            columns = _list(*keys, "_w", f"{bucket} AS _bucket", f"{term} AS _term")
            summed = f"_bucket + {i * exact.BUCKETS} AS _b, sum(_term * _w)::DECIMAL(38,0) AS _x"
            parts.append(
                f"SELECT {_list(*keys, *zeros)}, {summed} FROM (SELECT {columns} FROM rows WHERE {column} IS NOT NULL)"
                f" GROUP BY {_list(*keys, '_bucket')} HAVING sum(_term * _w) <> 0"
            )
    return f"SELECT *, {key_hash(spec)} AS _h FROM ({' UNION ALL '.join(parts)})"


@lru_cache(maxsize=1024)
def values(spec: AggregateSpec, argument: str) -> str:
    columns = _list(*_keys(spec), f"{_normal(spec, argument)} AS {quote(argument)}", "_w")
    inner = f"SELECT {columns} FROM rows WHERE {quote(argument)} IS NOT NULL"
    groups = _list(*_keys(spec), quote(argument))
    summed = f"SELECT {groups}, sum(_w)::BIGINT AS _w FROM ({inner}) GROUP BY {groups} HAVING sum(_w) <> 0"
    return f"SELECT *, {value_hash(spec, argument)} AS _h FROM ({summed})"


@lru_cache(maxsize=1024)
def sorted_values(spec: AggregateSpec, argument: str) -> str:
    """Values of one group in order, so that an arrangement of them has its extremes at the ends."""
    groups = _list(*_keys(spec), quote(argument), "_h")
    shown = _list(*_keys(spec), quote(argument), "sum(_w)::BIGINT AS _w", "_h")
    return f"SELECT {shown} FROM delta GROUP BY {groups} HAVING sum(_w) <> 0 ORDER BY _h, {quote(argument)}"


@lru_cache(maxsize=1024)
def flips(spec: AggregateSpec, argument: str) -> str:
    groups = _list(*_keys(spec), quote(argument))
    both = f"SELECT {groups}, 0 AS _o, _w AS _d FROM delta UNION ALL SELECT {groups}, _w, 0 FROM old"
    summed = f"SELECT {groups}, sum(_o) AS _old, sum(_o) + sum(_d) AS _new FROM ({both}) GROUP BY {groups}"
    weight = "CASE WHEN _old > 0 THEN -1 ELSE 1 END::BIGINT AS _w"
    return f"SELECT {groups}, {weight} FROM ({summed}) WHERE (_old > 0) <> (_new > 0)"


@lru_cache(maxsize=1024)
def sums(spec: AggregateSpec) -> str:
    plan = layout(spec)
    keys = _keys(spec)
    plain = [c for a in plan.plain for c in a.columns]
    kinds = {"_n": "BIGINT"} | {c: a.type for a in plan.plain for c in a.columns}
    both = "SELECT *, TRUE AS _old FROM old UNION ALL BY NAME SELECT *, FALSE AS _old FROM delta"

    def sides(column: str, name: str) -> list[str]:
        old = f"coalesce(sum({quote(column)}) FILTER (WHERE _old), 0)::{kinds[column]} AS {quote(name + '_o')}"
        return [old, f"sum({quote(column)})::{kinds[column]} AS {quote(name + '_n')}"]

    added = [*sides("_n", "_n"), *(s for c in plain for s in sides(c, c))]
    groups = _list(*keys, "_h")
    seen = "bool_or(_old) AS _seen"
    if not plan.bucketed:
        return f"SELECT {_list(groups, seen, *added)} FROM ({both}) GROUP BY {groups}"
    kinds["_x"] = "DECIMAL(38,0)"
    by_bucket = _list(groups, "_b", seen, *added, *sides("_x", "_x"))
    inner = f"SELECT {by_bucket} FROM ({both}) GROUP BY {groups}, _b"
    again = [
        f"sum({quote(f'{c}_{side}')})::{kind} AS {quote(f'{c}_{side}')}"
        for c, kind in {"_n": "BIGINT", **{c: kinds[c] for c in plain}}.items()
        for side in "on"
    ]
    buckets = "coalesce(list({'b': _b, 'o': _x_o, 'n': _x_n}) FILTER (WHERE _b >= 0), []) AS _buckets"
    shown = _list(groups, "bool_or(_seen) AS _seen", *again, buckets)
    return f"SELECT {shown} FROM ({inner}) GROUP BY {groups}"


@lru_cache(maxsize=1024)
def read(spec: AggregateSpec) -> str:
    """Over `v` (what `sums` gives) and, for each argument of Min or Max, `e0`, `e1`, … ; starts inside a WITH."""
    plan = layout(spec)
    keys = _keys(spec)
    exists = ("_n_o <> 0", "_n_n <> 0") if spec.keys else ("_seen", "TRUE")
    totals = [f"{finish.total(a, s)} AS {quote(f'{a.name}_{s}')}" for a in plan.plain for s in "on"]
    doubles = [quote(f"{a.name}_{s}") for a in plan.bucketed if a.kind == "exact" for s in "on"]
    computed = [quote(f"_{m.name}_{s}") for m in spec.measures if finish.is_computed(m) for s in "on"]
    joins, found = "", []
    for i, argument in enumerate(plan.extremes):
        on = " AND ".join(f"v.{k} IS NOT DISTINCT FROM e{i}.{k}" for k in keys) or "TRUE"
        joins += f" LEFT JOIN e{i} ON {on}"
        names = (f"_{f}_{argument}_{s}" for f in ("min", "max") for s in "on")
        found += [f"e{i}.{quote(name)}" for name in names]
    t_columns = _list(*(f"v.{k}" for k in keys), "_n_o", "_n_n", "_seen", *totals, *doubles, *computed, *found)
    read_columns, problems = [], ["WHEN _n_n < 0 OR _n_o < 0 THEN -1"]
    for i, measure in enumerate(spec.measures):
        (old, _), (new, beyond) = finish.value(measure, "o"), finish.value(measure, "n")
        read_columns += [f"{old} AS _o{i}", f"{new} AS _n{i}"]
        if beyond != "FALSE":
            problems.append(f"WHEN {beyond} THEN {i + 1}")
    bad = f"CASE {' '.join(problems)} ELSE 0 END AS _bad"
    f_columns = _list(*keys, f"{exists[0]} AS _was", f"{exists[1]} AS _now", *read_columns, bad)
    differ = " OR ".join(["_was <> _now", *(f"_o{i} IS DISTINCT FROM _n{i}" for i in range(len(spec.measures)))])
    picked = [f"CASE WHEN _w < 0 THEN _o{i} ELSE _n{i} END AS {quote(m.name)}" for i, m in enumerate(spec.measures)]
    return (
        f"t AS (SELECT {t_columns} FROM v{joins}), f AS (SELECT {f_columns} FROM t)"
        f" SELECT {_list(*keys, *picked, '_w', 'CASE WHEN _w < 0 THEN 0 ELSE _bad END::INTEGER AS _bad')}"
        f" FROM f, (VALUES (-1::BIGINT), (1::BIGINT)) side(_w)"
        f" WHERE CASE WHEN _w < 0 THEN _was ELSE _now END AND ({differ} OR _bad <> 0)"
    )


def key_hash(spec: AggregateSpec) -> str:
    return f"hash({_list(*_keys(spec))})" if spec.keys else "0::UBIGINT"


def value_hash(spec: AggregateSpec, argument: str) -> str:
    """By group; by group and value where only single values are looked up, still distributed by group."""
    if argument in layout(spec).extremes:
        return key_hash(spec)
    return f"(({key_hash(spec)} & {_GROUP_BITS}) | (hash({_list(*_keys(spec), quote(argument))}) >> 16))"


def _normal(spec: AggregateSpec, argument: str) -> str:
    """−0.0 as 0.0 and one NaN: as values to compare they are the same."""
    kind = next(m.argument_type for m in spec.measures if m.argument == argument) or ""
    if not types.is_float(kind):
        return quote(argument)
    duck = types.duckdb(kind)
    return f"CASE WHEN isnan({quote(argument)}) THEN 'nan'::{duck} ELSE {quote(argument)} + 0::{duck} END"


def _keys(spec: AggregateSpec) -> list[str]:
    return [quote(k.name) for k in spec.keys]


def _list(*parts: str) -> str:
    return ", ".join(parts)


def _group_by(keys: list[str]) -> str:
    return f" GROUP BY {_list(*keys)}" if keys else ""
