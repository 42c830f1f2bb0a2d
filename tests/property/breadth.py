"""The productions beyond the core: each behind a feature of `grammar.BREADTH`.

Every ORDER BY that chooses rows (top-k, windows) ends in all columns of its input, so that ties are between equal rows
and the choice does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from .query import Query, Select, View
from .scalars import Scalars
from .typed import ROWS, Typed, derived, literal_like

if TYPE_CHECKING:
    from .grammar import Grammar, Scope


def top_k(rng: Random, view: View, names: Sequence[str]) -> View:
    """ORDER BY every column, LIMIT a few."""
    shuffled = rng.sample(list(names), len(names))
    order = tuple((n, rng.choice(("", "DESC", "ASC NULLS LAST"))) for n in shuffled)
    limit = f"LIMIT {rng.choice((1, 3, 10))}" + rng.choice(("", "", " OFFSET 2"))
    return replace(view, order=order, limit=limit, rows=10)


def set_operation(grammar: Grammar, depth: int) -> tuple[Query, tuple[Typed, ...], int]:
    """UNION, EXCEPT, INTERSECT, also ALL, over selects that share values."""
    operator = grammar.rng.choice(("UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"))
    query, columns, rows = grammar.union(depth, operator)
    return (
        query,
        tuple(replace(c, loose="") if c.loose == "zero" and "ALL" not in operator else c for c in columns),
        rows,
    )


def conditions(grammar: Grammar, scope: Scope) -> tuple[str, ...]:
    """EXISTS, IN and scalar comparisons for WHERE, as the features say."""
    found: list[str] = []
    scalars = Scalars(grammar.rng, scope.columns, grammar.features)
    if grammar.has("semi join", 0.25) and (text := _presence(grammar, scope)):
        found.append(f"({text} OR {scalars.predicate(0).sql})" if grammar.rng.random() < 0.2 else text)
    if grammar.has("scalar subquery", 0.12):
        found += threshold(grammar, scalars, scope)
    return tuple(found)


def threshold(grammar: Grammar, scalars: Scalars, scope: Scope) -> tuple[str, ...]:
    """A comparison with a scalar subquery."""
    value = scalar_subquery(grammar, scope)
    left = scalars.of(value.family, 0)
    if value.loose or left.loose:
        return ()
    return (f"{left.sql} {grammar.rng.choice(('<', '>=', '=', '<>'))} {value.sql}",)


def _presence(grammar: Grammar, scope: Scope) -> str | None:
    source = grammar.rng.choice(grammar.named)
    relation, columns, _ = grammar._relation(source, "")
    pairs = [(a, b) for a in scope.columns for b in columns if a.type == b.type and not a.loose and not b.loose]
    if not pairs:
        return None
    outer, inner = grammar.rng.choice(pairs)
    local = Scalars(grammar.rng, columns, grammar.features).predicate(1).sql if grammar.rng.random() < 0.6 else "TRUE"
    forms = ["EXISTS", "NOT EXISTS", "IN"] + (["NOT IN"] if "not in" in grammar.features else [])
    form = grammar.rng.choice(forms)
    if form.endswith("IN"):
        return f"{outer.sql} {form} (SELECT {inner.sql} FROM {relation.sql} WHERE {local})"
    residual = ""
    if grammar.rng.random() < 0.3:
        both = Scalars(grammar.rng, [*scope.columns, *columns], grammar.features)
        residual = f" AND {both.predicate(1).sql}"
    return f"{form} (SELECT 1 FROM {relation.sql} WHERE {inner.sql} = {outer.sql} AND {local}{residual})"


def scalar_subquery(grammar: Grammar, scope: Scope) -> Typed:
    """(SELECT aggregate FROM source [WHERE column = outer column])."""
    source = grammar.rng.choice(grammar.named)
    relation, columns, _ = grammar._relation(source, "")
    call = grammar.call(Scalars(grammar.rng, columns, grammar.features))
    where = ""
    pairs = [(a, b) for a in scope.columns for b in columns if a.type == b.type and not a.loose and not b.loose]
    if pairs and grammar.rng.random() < 0.6:
        outer, inner = grammar.rng.choice(pairs)
        where = f" WHERE {inner.sql} = {outer.sql}"
    return replace(call, sql=f"(SELECT {call.sql} AS v FROM {relation.sql}{where})")


def grouping(grammar: Grammar, keys: Sequence[Typed]) -> tuple[str, tuple[Typed, ...]]:
    """The text of GROUP BY with `$` for the keys, and what tells the sets apart."""
    texts = [k.sql for k in keys]
    sets = [texts, texts[:1], *([[]] if grammar.rng.random() < 0.6 else []), texts[1:]]
    listed = ", ".join(f"({', '.join(s)})" for s in sets)
    form = grammar.rng.choice(("ROLLUP ($)", "CUBE ($)", f"GROUPING SETS ({listed})"))
    return form, (Typed("grouping_id()", "bigint", bound=8, portable=False),)


def inequality(rng: Random, left: Sequence[Typed], right: Sequence[Typed]) -> tuple[str, ...]:
    pairs = [(a, b) for a in left for b in right if a.type == b.type and not a.loose and not b.loose]
    if not pairs:
        return ()
    a, b = rng.choice(pairs)
    return (f"{a.sql} {rng.choice(('<', '>=', '<>'))} {b.sql}",)


def further_call(grammar: Grammar, scalars: Scalars) -> Typed | None:
    """Variance and its kin, and aggregates that only recompute can keep."""
    if grammar.has("variance", 0.5):
        argument, other = (scalars.of(grammar.rng.choice(("int", "float", "decimal")), 0) for _ in range(2))
        if any(a.loose or a.special or a.bound is None or a.bound > 10**6 for a in (argument, other)):
            return None
        if grammar.rng.random() < 0.3:
            two = f"{grammar.rng.choice(('covar_pop', 'covar_samp'))}({argument.sql}, {other.sql})"
            one = grammar.rng.choice((f"median({argument.sql})", f"percentile({argument.sql}, 0.25)"))
            return derived(grammar.rng.choice((one, two)), "double", argument, other, loose="near", portable=False)
        function = grammar.rng.choice(("stddev", "stddev_pop", "variance", "var_pop", "stddev_samp", "var_samp"))
        return derived(f"{function}({argument.sql})", "double", argument, loose="near", portable=False)
    if "more aggregates" not in grammar.features:
        return None
    condition = scalars.predicate(1)
    number = scalars.of("int", 0)
    form = grammar.rng.choice(("bool_and", "bool_or", "count_if", "bit_and", "bit_or", "bit_xor", "pairs"))
    if form == "pairs":
        other = scalars.any(0)
        sql = f"count(DISTINCT {number.sql}, {other.sql})"
        return None if other.loose else derived(sql, "bigint", number, other, bound=ROWS, portable=False)
    if form == "count_if":
        return derived(f"count_if({condition.sql})", "bigint", condition, bound=ROWS, portable=False)
    if form.startswith("bool"):
        return derived(f"{form}({condition.sql})", "boolean", condition, portable=False)
    return derived(f"{form}({number.sql})", number.type, number, bound=None, portable=False)


def window(grammar: Grammar, scope: Scope) -> tuple[Select, tuple[Typed, ...], int]:
    """Window functions; their order is total up to equal rows. Sometimes the first rows of each partition only."""
    rng = grammar.rng
    if any(c.loose or (c.family == "float" and c.special) for c in scope.columns):
        return grammar.projection(scope)
    scalars = Scalars(rng, scope.columns, grammar.features)
    items = [scalars.any(rng.choice((0, 0, 1))) for _ in range(rng.randint(1, 3))]
    partition = [scalars.any(0) for _ in range(rng.choice((0, 1, 1, 1, 1, 2)))]
    first = rng.choice(scope.columns)
    rest = [c.sql for c in scope.columns if c.sql != first.sql]
    full = ", ".join([first.sql + rng.choice(("", " DESC", " NULLS LAST")), *rest])
    by = f"PARTITION BY {', '.join(p.sql for p in partition)}" if partition else ""
    ranked = rng.random() < 0.3
    if ranked:
        items.append(_rank(rng.choice(("row_number", "rank", "dense_rank")), by, first, full))
    for _ in range(rng.choice((0, 1) if ranked else (1, 1, 2))):
        items.append(_window_call(grammar, scalars, by, first, full))
    named, columns = grammar._named(items)
    where = grammar._conjuncts(scalars, 0.3)
    query = Select(named, scope.relations, where)
    if not ranked:
        return query, columns, scope.rows
    rank = next(name for e, name in named if "() OVER" in e)
    relation, seen, _ = grammar._relation(grammar.source(query, columns, scope.rows), "")
    some = f"{relation.alias}.{rank} {rng.choice(('<= 2', '= 1', '< 4'))}"
    return Select(tuple((c.sql, n) for c, (_, n) in zip(seen, named, strict=True)), (relation,), (some,)), columns, 20


def _rank(form: str, by: str, first: Typed, full: str) -> Typed:
    order = full if form in ("row_number", "ntile(3)") else first.sql
    call = form if form.endswith(")") else f"{form}()"
    type_ = "double" if form in ("percent_rank", "cume_dist") else "int"
    return Typed(f"{call} OVER ({by} ORDER BY {order})", type_, bound=ROWS, portable=False)


def _window_call(grammar: Grammar, scalars: Scalars, by: str, first: Typed, full: str) -> Typed:
    rng = grammar.rng
    ranks = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile(3)")
    values = ("lag", "lead", "first_value", "last_value")
    form = rng.choice((*ranks, *values, *values, "running", "framed", "whole", "peers", "range"))
    if form in ranks:
        return _rank(form, by, first, full)
    if form in ("lag", "lead"):
        e = scalars.any(0)
        default = f", 1, {literal_like(rng, e).sql}" if rng.random() < 0.3 else rng.choice(("", ", 2"))
        return replace(e, sql=f"{form}({e.sql}{default}) OVER ({by} ORDER BY {full})", portable=False, bound=None)
    if form in ("first_value", "last_value"):
        e = scalars.any(0)
        frame = rng.choice(("UNBOUNDED PRECEDING AND 1 FOLLOWING", "CURRENT ROW AND 2 FOLLOWING"))
        over = f"{by} ORDER BY {full} ROWS BETWEEN {frame}"
        return replace(e, sql=f"{form}({e.sql}{rng.choice(('', ', true'))}) OVER ({over})", portable=False)
    call = grammar.call(scalars)
    while "DISTINCT" in call.sql or call.loose:
        call = grammar.count(scalars)
    if form == "range" and (first.family != "int" or first.bound is None or first.bound > 10_000):
        form = "peers"
    frame = {
        "running": f"{by} ORDER BY {full} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        "framed": f"{by} ORDER BY {full} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
        "whole": by,
        "peers": f"{by} ORDER BY {first.sql}",
        "range": f"{by} ORDER BY {first.sql} RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    }[form]
    return replace(call, sql=f"{call.sql} OVER ({frame})", portable=False)


def over_groups(grammar: Grammar, keys: Sequence[Typed], calls: Sequence[Typed]) -> Typed | None:
    """A window function over the groups: their rank, or an aggregate's share in all groups of a part."""
    rng = grammar.rng
    steady = [c for c in calls if not c.loose and not (c.family == "float" and c.special)]
    if not steady:
        return None
    call = rng.choice(steady)
    by = f"PARTITION BY {rng.choice(list(keys)).sql}" if rng.random() < 0.7 else ""
    if rng.random() < 0.4:
        return _rank(rng.choice(("rank", "dense_rank")), by, call, "")
    function = rng.choice(("max", "min", "count"))
    found = replace(call, type="bigint") if function == "count" else call
    return replace(found, sql=f"{function}({call.sql}) OVER ({by})", portable=False, bound=None, values=())
