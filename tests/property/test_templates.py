"""Plans that follow from others are those that Catalyst makes, whatever the constants.

Each template is asked with constants of every kind, one after the other as CREATEs would come; what was put together is
compared with what Catalyst says of the same text, and learned from. The templates of the second list are those whose
plans hang on values in ways that a class of constants does not cover: nothing may be put together for them wrongly.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.plan.catalyst import front_session, read_query
from viewkeeper.plan.families.plan_templates import TemplateCache
from viewkeeper.plan.families.text_templates import extract_template

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table(name: str, columns: str) -> Table:
    pairs = [c.split() for c in columns.split(", ")]
    made = tuple(Column(n, types.parse_type(t), nullable=i > 0) for i, (n, t) in enumerate(pairs))
    return Table(0, name, made, (KeyPart(made[0].name),))


LINES = table(
    "lines",
    "line bigint, ship date, disc decimal(4,2), qty decimal(15,2), price decimal(15,2), flag string, tiny tinyint,"
    " small smallint, n int, big bigint, f float, x double, at timestamp, ok boolean, k bigint",
)
HEADS = table("heads", "head bigint, day date, who string, m int")


def catalog() -> Catalog:
    found = Catalog()
    for number, one in enumerate((LINES, HEADS), 1):
        made = Table(number, one.name, one.columns, one.key)
        found = found.with_table(made)
    return found


def day(rng: Random) -> str:
    chosen = rng.choice([(1994, 1, 1), (1996, 2, 29), (2000, 12, 31), (1900, 1, 31), (1995, 6, 17)])
    return str(datetime.date(*chosen) + datetime.timedelta(rng.choice([0, 0, 1, 30, 365, 5000])))


def cents(rng: Random) -> str:
    return rng.choice(["0.05", "0.06", "0.09", "0.10", "0.00", "0.5", "1.00", "0.070", "12.34", "99999.99"])


def count(rng: Random) -> str:
    return rng.choice(["0", "1", "5", "7", "24", "25", "99", "100", "127", "128", "300", "40000", "3000000000"])


def word(rng: Random) -> str:
    return rng.choice(["'R'", "'A'", "''", "'BUILDING'", "'it''s'", "'1994-01-01'", "'5'"])


Made = Callable[[Random], str]


def q(text: str, **draws: Made) -> Made:
    def made(rng: Random) -> str:
        values: dict[str, Any] = {name: draw(rng) for name, draw in draws.items()}
        return text.format(**values)

    return made


PLAIN: dict[str, Made] = {
    "q6": q(
        "select sum(price * disc) as r from lines where ship >= date '{d}' and ship < date '{d}' + interval 1 year"
        " and disc between {c} - 0.01 and {c} + 0.01 and qty < {n}",
        d=day,
        c=lambda r: r.choice(["0.05", "0.06", "0.09"]),
        n=lambda r: r.choice(["24", "25", "30"]),
    ),
    "q1": q(
        "select flag, sum(qty) s, count(*) c from lines where ship <= date '{d}' - interval 90 day group by flag", d=day
    ),
    "q3": q(
        "select line, sum(price * (1 - disc)) s, day from lines join heads on k = head where who = {w} and day <"
        " date '{d}' and ship > date '{d}' group by line, day",
        d=day,
        w=lambda r: r.choice(["'BUILDING'", "'AUTO'", "'MACHINERY'"]),
    ),
    "months": q("select line from lines where ship < date '{d}' + interval '1' month and n > {n}", d=day, n=count),
    "texts as dates": q("select line from lines where ship >= '{d}' and flag <> {w}", d=day, w=word),
    "times": q("select line from lines where at >= date '{d}' and at < '{e}'", d=day, e=day),
    "in": q(
        "select line from lines where n in ({a}, {b}, {c}) and flag in ({v}, {w})",
        a=count,
        b=count,
        c=count,
        v=word,
        w=word,
    ),
    "having": q("select flag, sum(qty) s from lines group by flag having sum(qty) > {n}", n=count),
}
HARD: dict[str, Made] = {
    "narrow": q("select line from lines where tiny > {n} and small <= {m}", n=count, m=count),
    "wide": q("select line from lines where big > {n} and x < {c} and f > {d}", n=count, c=cents, d=cents),
    "fractions": q("select line from lines where n > {c} and n < {d}", c=cents, d=cents),
    "negative": q("select line from lines where n > -{n} and disc > -{c}", n=count, c=cents),
    "equal": q("select line from lines where n = {n} and k > {m}", n=count, m=count),
    "spreading": q("select line from lines where n = {n} and n > {m} and k > {m}", n=count, m=count),
    "spreading through a sum": q("select line from lines where n = {n} and n + 10 > 12 and k > {m}", n=count, m=count),
    "spreading through a join": q(
        "select line from lines join heads on n = m where m = {n} and n > {m} and k > {m}", n=count, m=count
    ),
    "turned": q("select line from lines where {n} = n and n > {m} and k > {m}", n=count, m=count),
    "case": q("select line from lines where case when ok then 5 else 7 end > {n}", n=count),
    "coalesce": q("select line from lines where coalesce(n, 5) + 3 > {n}", n=count),
    "outer": q("select line from lines left join heads on k = head where coalesce(m, 5) > {n}", n=count),
    "folded": q("select line from lines where {n} < {m} and k > {m}", n=count, m=count),
    "products": q("select line, disc * {c} + {d} as y from lines where disc * {c} - 0.01 > {d}", c=cents, d=cents),
    "listed once": q("select line from lines where n in ({n}) and n > {m} and k > {m}", n=count, m=count),
    "either": q("select line from lines where (n > {n} and k > {m}) or (n > {n} and big > {m})", n=count, m=count),
    "same": q("select line from lines where n > {n} and n > {m} and k >= {n}", n=count, m=count),
    "like": q("select line from lines where flag like {w} and n > {n}", w=word, n=count),
    "text with a number": q("select line from lines where n = {w} and flag > {n}", w=word, n=count),
    "limits": q("select line from lines where n > {n} order by line limit {m}", n=count, m=lambda r: r.choice("0129")),
    "literals shown": q("select line, {n} as y, sum(qty) over () s from lines where k > {n}", n=count),
    "dates far": q("select line from lines where ship < date '{d}' + interval {n} year", d=day, n=count),
}


def asked(front: SparkSession, made: Made, times: int, seed: int) -> tuple[int, int]:
    """How often a plan was put together, and of how many different texts."""
    rng, templates, known = Random(seed), TemplateCache(), catalog()
    tables = {t.name: t for t in known.tables}
    found = texts = 0
    for text in dict.fromkeys(made(rng) for _ in range(times)):
        put_together = templates.find(text, known)
        try:
            read = read_query(front, text, tables)
        except ViewkeeperError:
            assert put_together is None, text
            continue
        texts += 1
        if put_together is None:
            templates.learn(text, known, read)
        else:
            assert put_together == read, text
            found += 1
    return found, texts


@pytest.fixture(scope="module")
def front(spark: SparkSession) -> SparkSession:
    return front_session(spark)


@pytest.mark.parametrize("name", PLAIN)
def test_plans_that_were_put_together_are_catalysts(front: SparkSession, name: str) -> None:
    found, texts = asked(front, PLAIN[name], 11, 1)
    assert texts > 3
    if name in ("q6", "q1", "q3", "months"):
        assert found > 0


@pytest.mark.parametrize("name", HARD)
def test_what_hangs_on_values_goes_the_long_way(front: SparkSession, name: str) -> None:
    asked(front, HARD[name], 6, 2)


@pytest.mark.deep
@pytest.mark.parametrize("name", [*PLAIN, *HARD])
@pytest.mark.parametrize("seed", range(2))
def test_many_more_of_them(front: SparkSession, name: str, seed: int) -> None:
    asked(front, (PLAIN | HARD)[name], 60, seed)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("select a from t where b > 5", ["5"]),
        ("select a from t where t.b > 5 and t.c = 'x'", ["5", "x"]),
        ("select a from t where b between -1 and 0.5 + 0.25", ["-1", "0.75"]),
        ("select a from t where b < date '1996-02-29' + interval '1' year", ["1997-02-28"]),
        ("select a from t group by a having count(*) > 3", ["3"]),
        ("select a from t where b + 1 > 5", None),
        ("select a from t where b > 5 * c", None),
        ("select * from t where b > 5", None),
        ("select a from (select a from t where b > 5) where a < 3", None),
        ("select a from t where b = 5 and b < c", None),
        ("select a from t where b > :b", None),
    ],
)
def test_constants_of_a_text(text: str, values: list[str] | None) -> None:
    found = extract_template(text)
    assert (None if found is None else [str(c.value) for c in found.constants]) == values
