"""Queries that nest in each other: every shape takes relations of three columns to a relation of the same three.

    k0 INT, c1 INT, c2 STRING       each may be NULL; integers are small and not negative

So any shape can stand in any place of any other, and every pair of them can be drawn. A shape is a template with `{0}`
and `{1}` for its inputs, drawn with its details: conditions, expressions that Spark may see raise (but which do not,
on these values), keys that are NULL. `JOINS` and `CONDITIONS` are the kinds of joins and of their ON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .schemas import Column, Table

NAMES = ("k0", "c1", "c2")
ON = "$on"
"""In a template: a condition between r1 and r2, of a kind that is drawn with the shape."""
KEYS = (("k0",), ("k0", "c1"), ("c1",), ("k0",))
"""Of the tables tab_0, tab_1, …"""

Rows = Callable[[int, int], int]
"""About how many rows come of so many of the inputs."""


@dataclass(frozen=True)
class Shape:
    """`draw` gives the template."""

    inputs: int
    draw: Callable[[Random], str]
    rows: Rows


def tables(rng: Random) -> tuple[Table, ...]:
    """Keys that are unique, repeated, nullable; some tables are empty at first, or stay so."""
    number, value = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4)
    text = ("a", "b", "ab", "")

    def table(name: str, key: tuple[str, ...]) -> Table:
        columns = (
            Column("k0", "int", number, "k0" not in key, bound=5),
            Column("c1", "int", value, "c1" not in key, bound=5),
            Column("c2", "string", text),
        )
        return Table(name, columns, key, rng.choice((0, 3, 6, 8)))

    return tuple(table(f"tab_{i}", key) for i, key in enumerate(KEYS))


# Conditions and expressions.

CONDITIONS: dict[str, tuple[str, ...]] = {
    "equality": ("$l.k0 = $r.k0", "$l.c1 = $r.k0", "$l.c2 = $r.c2", "$l.k0 = $r.k0 AND $l.c1 = $r.c1"),
    "null-safe": ("$l.k0 <=> $r.k0", "$l.c1 <=> $r.c1 AND $l.k0 = $r.k0", "$l.c2 <=> $r.c2"),
    "one side": (
        "$l.k0 = $r.k0 AND $l.c1 > 1",
        "$l.k0 = $r.k0 AND $r.c1 < 3",
        "$l.c1 = $r.c1 AND $r.c2 IS NOT NULL AND $l.k0 <> 2",
        "$l.k0 = $r.k0 AND $r.k0 = 1",
        "$l.k0 = $r.k0 AND $l.k0 IN (1, 2, NULL)",
    ),
    "both sides": (
        "$l.k0 = $r.k0 AND $l.c1 < $r.c1",
        "$l.k0 = $r.k0 AND $l.c2 <> $r.c2",
        "$l.c1 = $r.c1 AND ($l.k0 = 1 OR $r.k0 = 2)",
        "$l.k0 = $r.k0 AND coalesce($l.c1, $r.c1) > 1",
    ),
    "can raise": (
        "$l.k0 + 1 = $r.c1 + 1",
        "$l.k0 = $r.k0 AND 10 / ($r.c1 + 1) > 2",
        "$l.k0 = $r.k0 AND $l.c1 + $r.c1 > 3",
        "$l.k0 = $r.k0 AND 10 DIV ($l.c1 + 1) > 2",
    ),
    "no equality": (
        "$l.c1 < $r.c1",
        "$l.k0 = $r.k0 OR $l.c1 = $r.c1",
        "$r.k0 IN ($l.k0, $l.c1)",
        "$l.k0 > $r.k0 AND $l.c2 = 'a'",
    ),
    "none": ("TRUE", "$l.c1 = 1", "$r.c1 = 1", "FALSE"),
}
BY_KEY = (
    *("$l.k0 = $r.k0", "$l.c1 = $r.k0", "$l.k0 <=> $r.k0", "$l.c1 + 1 = $r.k0", "$l.k0 = $r.k0 AND $r.c1 > 1"),
    *("$l.k0 = $r.k0 AND $l.c1 < $r.c1", "$l.c1 = $r.k0 AND $l.c2 <> 'a'", "$l.c1 = $r.k0 AND $l.k0 <> $r.c1"),
)
"""Conditions that at most one row of a relation with the key k0 meets."""
_SELECTIVE = dict(zip(CONDITIONS, (4, 3, 6, 6, 6, 2, 1), strict=True))


def condition(rng: Random, kind: str, left: str, right: str) -> str:
    return rng.choice(CONDITIONS[kind]).replace("$l", left).replace("$r", right)


def met(kind: str, left: int, right: int) -> int:
    """About how many pairs meet such a condition."""
    return left * right // _SELECTIVE[kind] + 1


_EXPRESSIONS = {
    "k0": ("$.k0", "$.k0", "$.k0", "nullif($.k0, 2)", "($.k0 + 1) % 6", "coalesce($.k0, 9)", "$.c1"),
    "c1": ("$.c1", "$.c1", "$.c1 + 1", "coalesce($.c1, 0)", "CASE WHEN $.k0 > 2 THEN $.c1 END", "length($.c2)", "$.k0"),
    "c2": ("$.c2", "$.c2", "upper($.c2)", "coalesce($.c2, 'n')", "substr(concat($.c2, 'x'), 1, 3)"),
}


def items(rng: Random, *aliases: str) -> tuple[tuple[str, str], ...]:
    """The three columns, each from one of these relations."""
    return tuple((rng.choice(_EXPRESSIONS[name]).replace("$", rng.choice(aliases)), name) for name in NAMES)


def select(rng: Random, *aliases: str, **fixed_columns: str) -> str:
    """SELECT and the three columns; those `given` as they are."""
    drawn = {name: text for text, name in items(rng, *aliases)} | fixed_columns
    return "SELECT " + ", ".join(f"{drawn[name]} AS {name}" for name in NAMES)


_FILTERS = (
    *("r1.c1 > 1", "r1.k0 <> 3", "r1.c2 = 'a' OR r1.c1 IS NULL", "r1.c1 + 1 > 2", "10 / (r1.k0 + 1) > 3"),
    *("r1.k0 IN (1, 2, 4)", "r1.k0 IN (r1.c1)", "r1.k0 NOT IN (r1.c1, 3)", "r1.k0 IN (r1.c1, r1.c1 + 1)"),
    *("r1.c2 LIKE 'a%'", "NOT (r1.k0 > 2 AND r1.c1 > 1)", "r1.c1 BETWEEN 1 AND r1.k0", "r1.k0 <=> r1.c1"),
    *("CAST(concat('0', r1.k0) AS INT) > 1", "coalesce(r1.c1, r1.k0, 0) < 3", "r1.c2 IS NOT NULL"),
)
_AGGREGATES = (
    *("CAST(count(*) AS INT)", "CAST(sum(r1.c1) % 97 AS INT)", "max(r1.c1)", "min(r1.k0)", "max(r1.c1 + 1)"),
    *("CAST(count(DISTINCT r1.c2) AS INT)", "CAST(sum(r1.c1) FILTER (WHERE r1.k0 > 1) % 97 AS INT)"),
    *("CAST(count(r1.c1) AS INT)", "CAST(floor(avg(r1.c1)) AS INT)", "CAST(count_if(r1.c1 > r1.k0) AS INT)"),
)
_ORDER = "r1.k0, r1.c1 DESC, r1.c2"
_WINDOWS = (
    f"row_number() OVER (PARTITION BY r1.k0 ORDER BY {_ORDER})",
    "rank() OVER (PARTITION BY r1.c2 ORDER BY r1.c1)",
    "CAST(sum(r1.c1) OVER (PARTITION BY r1.k0) % 97 AS INT)",
    "max(r1.c1 + 1) OVER (PARTITION BY r1.c2)",
    f"lag(r1.c1) OVER (PARTITION BY r1.k0 ORDER BY {_ORDER})",
    f"first_value(r1.k0) OVER (PARTITION BY r1.c2 ORDER BY {_ORDER})",
    f"CAST(count(*) OVER (ORDER BY {_ORDER} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS INT)",
    "dense_rank() OVER (ORDER BY r1.c1)",
)


def _grouped(rng: Random) -> str:
    one, aggregate = rng.choice(("r1.k0", "r1.c1", "(r1.k0 + 1) % 3")), rng.choice(_AGGREGATES)
    if rng.random() < 0.5:
        text = rng.choice(("max(r1.c2)", "min(r1.c2)", "CAST(count(*) AS STRING)"))
        return f"SELECT {one} AS k0, {aggregate} AS c1, {text} AS c2 FROM {{0}} r1 GROUP BY {one}"
    return f"SELECT {one} AS k0, {aggregate} AS c1, r1.c2 FROM {{0}} r1 GROUP BY {one}, r1.c2"


def _total(rng: Random) -> str:
    having = rng.choice(("", "", " HAVING count(*) > 2"))
    return (
        f"SELECT max(r1.k0) AS k0, {rng.choice(_AGGREGATES)} AS c1, {rng.choice(('max(r1.c2)', 'min(r1.c2)'))} AS c2"
        f" FROM {{0}} r1{having}"
    )


def _grouping_sets(rng: Random) -> str:
    sets = rng.choice(("ROLLUP (r1.k0, r1.c2)", "CUBE (r1.k0, r1.c2)", "GROUPING SETS ((r1.k0), (r1.c2), ())"))
    return f"SELECT r1.k0, {rng.choice(_AGGREGATES)} AS c1, r1.c2 FROM {{0}} r1 GROUP BY {sets}"


def _aggregate_of(rng: Random) -> str:
    call = rng.choice(("max(r2.c1)", "CAST(count(*) AS INT)", "CAST(sum(r2.c1) % 97 AS INT)", "min(r2.k0 + 1)"))
    return f"(SELECT {call} FROM {{1}} r2"


def _scalar(rng: Random) -> str:
    """A correlated scalar subquery as a column, or in WHERE."""
    on = rng.choice(("r2.k0 = r1.k0", "r2.c1 = r1.k0", "r2.k0 = r1.k0 AND r2.c1 < r1.c1", "r2.c2 = r1.c2"))
    value = f"{_aggregate_of(rng)} WHERE {on})"
    if rng.random() < 0.5:
        return f"{select(rng, 'r1', c1=value)} FROM {{0}} r1"
    return f"{select(rng, 'r1')} FROM {{0}} r1 WHERE r1.c1 {rng.choice(('<', '>=', '='))} {value}"


def _window_in_subquery(rng: Random) -> str:
    order = "ORDER BY r2.c1, r2.k0, r2.c2"
    calls = (f"row_number() OVER ({order})", "sum(r2.c1) OVER (PARTITION BY r2.c2)", f"rank() OVER ({order})")
    ranked = f"SELECT {rng.choice(calls)} AS o1 FROM {{1}} r2 WHERE r2.k0 = r1.k0"
    return f"{select(rng, 'r1', c1=f'(SELECT CAST(max(r3.o1) AS INT) FROM ({ranked}) r3)')} FROM {{0}} r1"


def _lateral(rng: Random, body: str) -> str:
    join = rng.choice((", LATERAL ({}) r3", " LEFT JOIN LATERAL ({}) r3 ON TRUE", " JOIN LATERAL ({}) r3 ON r3.o1 > 0"))
    return f"{select(rng, 'r1', c1=rng.choice(('r3.o1', 'r3.o1 + 1', 'coalesce(r3.o1, 0)')))} FROM {{0}} r1" + (
        join.format(body)
    )


def _presence(form: str) -> Callable[[Random], str]:
    """EXISTS and IN in all their forms, as a condition or as a value."""

    def draw(rng: Random) -> str:
        negated = rng.choice(("", "NOT ")) if form.endswith(("or", "value")) else ""
        if form.startswith("not"):
            negated = "NOT "
        if "in" in form.split():
            column = rng.choice(("k0", "c1", "c2"))
            some = rng.choice(("", " WHERE r2.c1 > 1", " WHERE r2.c2 = r1.c2", " WHERE r2.k0 IS NOT NULL"))
            text = f"r1.{column} {negated}IN (SELECT r2.{column} FROM {{1}} r2{some})"
            if rng.random() < 0.2:
                text = f"(r1.k0, r1.c1) {negated}IN (SELECT r2.k0, r2.c1 FROM {{1}} r2{some})"
        else:
            text = f"{negated}EXISTS (SELECT 1 FROM {{1}} r2 WHERE {ON})"
        if form.endswith("or"):
            text = f"{text} OR {rng.choice(('r1.c1 > 2', 'r1.k0 IS NULL', 'r1.c1 + 1 = 2'))}"
        if form.endswith("value"):
            return f"{select(rng, 'r1', c1=f'CASE WHEN {text} THEN 1 ELSE r1.c1 END')} FROM {{0}} r1"
        return f"{select(rng, 'r1')} FROM {{0}} r1 WHERE {text}"

    return draw


JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


def _set(operator: str) -> Shape:
    text = f"SELECT k0, c1, c2 FROM {{0}} r1 {operator} SELECT k0, c1, c2 FROM {{1}} r1"
    return Shape(2, lambda rng: text, lambda a, b: a + b)


def _using(rng: Random) -> str:
    how, key = rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")), rng.choice(("k0", "k0", "c1", "c2"))
    drawn = {name: text for text, name in items(rng, "r1", "r2")} | {key: key}
    return f"SELECT {', '.join(f'{drawn[n]} AS {n}' for n in NAMES)} FROM {{0}} r1 {how} {{1}} r2 USING ({key})"


def _self_join(rng: Random) -> str:
    how, on = rng.choice(("JOIN", "LEFT JOIN", "FULL JOIN")), condition(rng, "equality", "r1", "r2")
    return f"WITH cte_1 AS (SELECT * FROM {{0}} r0) {select(rng, 'r1', 'r2')} FROM cte_1 r1 {how} cte_1 r2 ON {on}"


def _one(draw: Callable[[Random], str], rows: Callable[[int], int] = lambda n: n) -> Shape:
    return Shape(1, draw, lambda a, _: rows(a))


def _two(draw: Callable[[Random], str], rows: Rows = lambda a, _: a) -> Shape:
    return Shape(2, draw, rows)


_EXPLODE = "explode(array(r1.c1, r1.k0, 1))", "explode(array(r1.c1 + 1))"

SHAPES: dict[str, Shape] = {
    "project": _one(lambda rng: f"{select(rng, 'r1')} FROM {{0}} r1"),
    "raising": _one(lambda rng: f"{select(rng, 'r1', c1='r1.c1 + 1', k0='CAST(r1.k0 AS TINYINT) + 0')} FROM {{0}} r1"),
    "constant": _one(lambda rng: f"{select(rng, 'r1', c1=rng.choice(('1', 'CAST(NULL AS INT)')))} FROM {{0}} r1"),
    "filter": _one(lambda rng: f"{select(rng, 'r1')} FROM {{0}} r1 WHERE {rng.choice(_FILTERS)}"),
    "distinct": _one(lambda rng: f"{select(rng, 'r1').replace('SELECT', 'SELECT DISTINCT')} FROM {{0}} r1"),
    "group": _one(_grouped, lambda n: min(n, 12)),
    "having": _one(lambda rng: f"{_grouped(rng)} HAVING count(*) > 1", lambda n: min(n, 8)),
    "total": _one(_total, lambda n: 1),
    "grouping sets": _one(_grouping_sets, lambda n: min(2 * n, 25)),
    "window": _one(lambda rng: f"{select(rng, 'r1', c1=rng.choice(_WINDOWS))} FROM {{0}} r1"),
    "first rows": _one(
        lambda rng: (
            f"SELECT k0, c1, c2 FROM (SELECT r1.k0, r1.c1, r1.c2, row_number() OVER (PARTITION BY r1.k0 ORDER BY"
            f" r1.c1, r1.c2) AS o1 FROM {{0}} r1) r2 WHERE o1 <= {rng.choice((1, 2))}"
        ),
        lambda n: min(n, 14),
    ),
    "limit": _one(
        lambda rng: f"SELECT k0, c1, c2 FROM {{0}} r1 ORDER BY {_ORDER} LIMIT {rng.choice((1, 3, 5))}", lambda n: 5
    ),
    "order": _one(lambda rng: f"SELECT k0, c1, c2 FROM {{0}} r1 ORDER BY {rng.choice(('c1', 'k0 DESC, c2'))}"),
    "explode": _one(
        lambda rng: (
            f"{select(rng, 'r1', c1='r3.o1')} FROM {{0}} r1 LATERAL VIEW {rng.choice(('', 'OUTER '))}"
            f"{rng.choice(_EXPLODE)} r3 AS o1"
        ),
        lambda n: 2 * n,
    ),
    "self join": _one(_self_join, lambda n: met("equality", n, n)),
    **{op.lower(): _set(op) for op in ("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL")},
    "using": _two(_using, lambda a, b: met("equality", a, b) + a + b),
    **{
        form: _two(_presence(form))
        for form in ("exists", "not exists", "in", "not in", "exists or", "in or", "exists value", "in value")
    },
    "scalar": _two(_scalar),
    "one value": _two(
        lambda rng: f"{select(rng, 'r1', c1=_aggregate_of(rng) + ')')} FROM {{0}} r1 WHERE r1.k0 IS NOT NULL"
    ),
    "window in subquery": _two(_window_in_subquery),
    "lateral": _two(
        lambda rng: _lateral(rng, f"SELECT r2.c1 AS o1 FROM {{1}} r2 WHERE {condition(rng, 'equality', 'r1', 'r2')}"),
        lambda a, b: met("equality", a, b) + a,
    ),
    "lateral total": _two(
        lambda rng: _lateral(rng, f"SELECT max(r2.c1) AS o1 FROM {{1}} r2 WHERE r2.k0 = r1.{rng.choice(NAMES[:2])}")
    ),
    "lateral window": _two(
        lambda rng: _lateral(
            rng,
            "SELECT CAST(row_number() OVER (ORDER BY r2.c1, r2.k0, r2.c2) AS INT) AS o1 FROM {1} r2"
            f" WHERE r2.k0 = r1.{rng.choice(NAMES[:2])}",
        ),
        lambda a, b: met("equality", a, b) + a,
    ),
    "lateral limit": _two(
        lambda rng: _lateral(rng, "SELECT r2.c1 AS o1 FROM {1} r2 WHERE r2.k0 = r1.k0 ORDER BY r2.c1, r2.c2 LIMIT 1")
    ),
}
"""Beside these there are the JOINS, and the leaves: tables, views made before, VALUES."""

VALUES = (
    "SELECT * FROM VALUES (1, 2, 'a'), (2, NULL, 'b'), (2, 3, NULL) AS r0 (k0, c1, c2)",
    "SELECT * FROM VALUES (CAST(NULL AS INT), 1, 'a') AS r0 (k0, c1, c2)",
    "SELECT 1 AS k0, 2 AS c1, 'ab' AS c2",
)
