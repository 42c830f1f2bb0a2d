"""SQL of an aggregate. Each text is generated once for a spec, and DuckDB prepares it once.

vectors_sql            rows → one vector for each group, and bucket rows
values_sql             rows → (group, value, weight)
distinct_changes_sql   old values and a delta → values whose weight leaves or reaches zero
"""

from __future__ import annotations

from functools import lru_cache

from viewkeeper.model import types
from viewkeeper.model.names import quoted
from viewkeeper.operators.aggregation import exact_float_sum
from viewkeeper.operators.aggregation.spec import Accumulator, AggregateSpec, accumulator_layout, raw_column

_GROUP_BITS = 0xFFFF_0000_0000_0000


@lru_cache(maxsize=1024)
def vectors_sql(spec: AggregateSpec, accumulators: tuple[Accumulator, ...], distinct: bool) -> str:
    """Return the statement for vectors. Accumulators that are not requested get zeros, so all vectors have the same
    columns."""
    plan = accumulator_layout(spec)
    keys = _quoted_keys(spec)
    sums = [("0" if distinct else "coalesce(sum(¤w), 0)") + "::BIGINT AS ¤n"]
    zeros = ["0::BIGINT AS ¤n"]
    for accumulator in plan.plain_accumulators:
        for name, term in zip(accumulator.columns, accumulator.terms_sql(), strict=True):
            summed = f"coalesce(sum({term} * ¤w), 0)" if accumulator in accumulators else "0"
            sums.append(f"{summed}::{accumulator.sql_type} AS {quoted(name)}")
            zeros.append(f"0::{accumulator.sql_type} AS {quoted(name)}")
    main = f"SELECT {_join_list(*keys, *sums)} FROM rows{_group_by_sql(keys)}"
    if not plan.bucketed_accumulators:
        if spec.keys and not plan.value_arguments:
            # With values, a zero vector is needed to mark the group as touched; without them it can be dropped.
            main = f"SELECT * FROM ({main}) WHERE {' OR '.join(f'{quoted(c)} <> 0' for c in plan.additive_columns)}"
        return f"SELECT *, {key_hash_sql(spec)} AS ¤h FROM ({main})"
    parts = [f"SELECT *, (-1)::INTEGER AS ¤b, 0::HUGEINT AS ¤x FROM ({main})"]
    for i, accumulator in enumerate(plan.bucketed_accumulators):
        split = exact_float_sum.sum_terms_sql if accumulator.kind == "exact" else exact_float_sum.square_terms_sql
        key_columns = "".join(f"{k}, " for k in keys)
        for select in (
            split(quoted(raw_column(accumulator.argument)), key_columns) if accumulator in accumulators else ()
        ):
            summed = f"¤bucket + {i * exact_float_sum.BUCKETS} AS ¤b, sum(¤term * ¤times) AS ¤x"
            parts.append(
                f"SELECT {_join_list(*keys, *zeros)}, {summed} FROM ({select})"
                f" GROUP BY {_join_list(*keys, '¤bucket')} HAVING sum(¤term * ¤times) <> 0"
            )
    return f"SELECT *, {key_hash_sql(spec)} AS ¤h FROM ({' UNION ALL '.join(parts)})"


@lru_cache(maxsize=1024)
def values_sql(spec: AggregateSpec, argument: str) -> str:
    columns = _join_list(*_quoted_keys(spec), f"{_normalized_value_sql(spec, argument)} AS {quoted(argument)}", "¤w")
    inner = f"SELECT {columns} FROM rows WHERE {quoted(argument)} IS NOT NULL"
    groups = _join_list(*_quoted_keys(spec), quoted(argument))
    summed = f"SELECT {groups}, sum(¤w)::BIGINT AS ¤w FROM ({inner}) GROUP BY {groups} HAVING sum(¤w) <> 0"
    return f"SELECT *, {value_hash_sql(spec, argument)} AS ¤h FROM ({summed})"


@lru_cache(maxsize=1024)
def distinct_changes_sql(spec: AggregateSpec, argument: str) -> str:
    groups = _join_list(*_quoted_keys(spec), quoted(argument))
    both = f"SELECT {groups}, 0 AS ¤o, ¤w AS ¤d FROM delta UNION ALL SELECT {groups}, ¤w, 0 FROM old"
    summed = f"SELECT {groups}, sum(¤o) AS ¤old, sum(¤o) + sum(¤d) AS ¤new FROM ({both}) GROUP BY {groups}"
    weight = "CASE WHEN ¤old > 0 THEN -1 ELSE 1 END::BIGINT AS ¤w"
    return f"SELECT {groups}, {weight} FROM ({summed}) WHERE (¤old > 0) <> (¤new > 0)"


def key_hash_sql(spec: AggregateSpec) -> str:
    return f"hash({_join_list(*_quoted_keys(spec))})" if spec.keys else "0::UBIGINT"


def value_hash_sql(spec: AggregateSpec, argument: str) -> str:
    """Return the hash of a value row: the group's, or, where only single values are looked up, the group's top 16 bits
    and bits of the value's hash. Both partition the rows by group."""
    if argument in accumulator_layout(spec).extreme_arguments:
        return key_hash_sql(spec)
    return (
        f"(({key_hash_sql(spec)} & {_GROUP_BITS}) | (hash({_join_list(*_quoted_keys(spec), quoted(argument))}) >> 16))"
    )


def _normalized_value_sql(spec: AggregateSpec, argument: str) -> str:
    """Return the value with −0.0 as 0.0 and a single NaN, because these compare as equal."""
    kind = next(m.argument_type for m in spec.measures if m.argument == argument) or types.VOID
    if not types.is_float(kind):
        return quoted(argument)
    duckdb_type = types.duckdb(kind)
    return (
        f"CASE WHEN isnan({quoted(argument)}) THEN 'nan'::{duckdb_type} ELSE {quoted(argument)} + 0::{duckdb_type} END"
    )


def _quoted_keys(spec: AggregateSpec) -> list[str]:
    return [quoted(k.name) for k in spec.keys]


def _join_list(*parts: str) -> str:
    return ", ".join(parts)


def _group_by_sql(keys: list[str]) -> str:
    return f" GROUP BY {_join_list(*keys)}" if keys else ""
