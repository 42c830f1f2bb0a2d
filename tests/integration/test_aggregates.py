"""Every aggregate and window function is Spark's, for every type and hard value, at CREATE and after changes.

The calls come from `aggregate_cases`, which makes them from the list of supported functions. Here one of each form and
kind; the deep profile has every type and frame (HYPOTHESIS_PROFILE=deep).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.errors import BadStatement, Unsupported
from viewkeeper.plan import catalyst
from viewkeeper.plan.functions import AGGREGATES, WINDOW_FUNCTIONS

from . import aggregate_cases as cases
from .aggregate_cases import Case

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
_TOGETHER = 60


@pytest.fixture
def session(spark: Any) -> Any:
    """Spark's own answers; hundreds of expressions are not worth compiling."""
    session = catalyst.front_session(spark)
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


@pytest.fixture
def facts(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db(spark=spark, durability="none")
    listed = ", ".join(f"{c} {kind}" for c, kind in cases.COLUMNS.items())
    db.sql(f"CREATE TABLE facts (id BIGINT, g INT, {listed}, PRIMARY KEY (id))")
    db.put("facts", cases.rows())
    db.refresh()
    return db


def chosen(kind: str) -> list[Case]:
    found: Iterator[Case] = getattr(cases, kind)()
    if DEEP:
        return list(cases.framed((*cases.FRAMES,)) if kind == "framed" else found)
    return list(cases.some(found, 1))


def views(kind: str) -> list[Sequence[Case]]:
    """The calls of each view. Spark rewrites several DISTINCT arguments: a view has those of the same columns."""
    kept = [c for c in chosen(kind) if not c.is_refused]
    parts: dict[object, list[Case]] = {}
    for case in kept:
        alone = case.function.name == "listagg"  # Spark cannot have its DISTINCT beside another
        together = case.call if alone else case.columns
        parts.setdefault(together if kind == "distinct" else None, []).append(case)
    return [part[i : i + _TOGETHER] for part in parts.values() for i in range(0, len(part), _TOGETHER)]


def query(kind: str, calls: Sequence[Case]) -> str:
    listed = ", ".join(f"{c.call} AS o{i}" for i, c in enumerate(calls))
    if kind.startswith("framed"):
        return f"SELECT id, {listed} FROM facts"
    return f"SELECT g, {listed} FROM facts WHERE g < {cases.ORDERED} GROUP BY g"


def differences(calls: Sequence[Case], expected: pa.Table, found: pa.Table) -> Iterable[str]:
    if expected.schema.types != found.schema.types:
        yield f"types {expected.schema} and {found.schema}"
    key = expected.column_names[0]
    want, have = ({row[key]: row for row in t.to_pylist()} for t in (expected, found))
    if want.keys() != have.keys():
        yield f"rows: {sorted(want.keys() ^ have.keys())} are not in both"
    in_any_order = {r["id"] for r in cases.rows() if r["g"] == cases.ORDERED} if key == "id" else set()
    for i, case in enumerate(calls):
        for k in (want.keys() & have.keys()) - (in_any_order if case.is_order_dependent else set()):
            one, other = want[k][f"o{i}"], have[k][f"o{i}"]
            if not same(case, one, other):
                yield f"{case.call} for {key} = {k} is {other!r}, in Spark {one!r}"


def same(case: Case, one: Any, other: Any) -> bool:
    if one == other:
        return True
    if not isinstance(one, float) or not isinstance(other, float):
        return False
    if math.isnan(other) and (math.isnan(one) or (("covar" in case.call or "sxy" in case.call) and math.isinf(one))):
        return True  # inf − inf: of an infinite covariance Spark has either, by the order of rows
    return case.is_approximate and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("kind", ["plain", "filtered", "distinct", "framed", "framed_filtered"])
def test_every_function_is_sparks(facts: Any, session: Any, kind: str) -> None:
    made = dict(enumerate(views(kind)))
    for number, calls in made.items():
        facts.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query(kind, calls)}")
    problems = []
    for step in ("at CREATE", "after changes"):
        if step != "at CREATE":
            puts, gone = cases.changes()
            facts.delete("facts", gone[::2])
            facts.put("facts", puts)
            facts.refresh()
            facts.delete("facts", gone[1::2])
            facts.refresh()
        typed = [f"CAST({c} AS {kind}) AS {c}" for c, kind in cases.COLUMNS.items()]
        session.createDataFrame(facts.read("facts")).selectExpr("id", "g", *typed).createOrReplaceTempView("facts")
        for number, calls in made.items():
            expected = session.sql(query(kind, calls)).toArrow()
            problems += [f"{step}: {p}" for p in differences(calls, expected, facts.read(f"v{number}"))]
    assert "\n".join(problems[:30]) == ""


REFUSED = {
    **{n: f"{n}(i)" for n in ("any_value", "first", "last", "approx_count_distinct", "approx_top_k")},
    **{n: f"{n}(i)" for n in ("collect_list", "collect_set", "bitmap_construct_agg", "hll_sketch_agg")},
    **{n: f"{n}(y)" for n in ("bitmap_or_agg", "bitmap_and_agg", "hll_union_agg", "theta_union_agg")},
    **{n: f"{n}(i, 0.5)" for n in ("approx_percentile", "percentile_approx")},
    "histogram_numeric": "histogram_numeric(i, 5)",
    "count_min_sketch": "count_min_sketch(i, 0.5d, 0.5d, 1)",
    "kll_sketch_agg_bigint": "kll_sketch_agg_bigint(l)",
    "kll_sketch_agg_double": "kll_sketch_agg_double(d)",
    "kll_sketch_agg_float": "kll_sketch_agg_float(f)",
    "theta_sketch_agg": "theta_sketch_agg(i)",
    "theta_intersection_agg": "theta_intersection_agg(y)",
    "collect_union": "collect_union(array(i))",
}
"""Aggregates of Spark that a view may not use, each with a call of it."""

OTHER_NAMES = {"mean", "every", "some", "any", "std", "stddev", "variance", "string_agg", "array_agg"}
"""Second names of functions that are in a list."""

UNTRIED = ("approx_top_k_", "kll_merge_", "tuple_", "grouping", "measure", "counter_diff")
"""Parts of sketches, which have no type here; what belongs to GROUP BY; a metric view's; an expression over lag."""


def test_the_list_says_what_becomes_of_every_aggregate_that_spark_has(session: Any) -> None:
    registry = session._jsparkSession.sessionState().functionRegistry()
    listed, found = registry.listFunction().iterator(), set()
    while listed.hasNext():
        function = listed.next()
        info = registry.lookupFunction(function)
        if info.isDefined() and info.get().getGroup() in ("agg_funcs", "window_funcs"):
            found.add(str(function.funcName()))
    known = {f.name for f in (*AGGREGATES, *WINDOW_FUNCTIONS)} | OTHER_NAMES | REFUSED.keys()
    assert {n for n in found - known if not n.startswith(UNTRIED)} == set()
    assert known - found == set()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_aggregate_that_is_not_supported_is_refused_by_its_name(facts: Any, name: str) -> None:
    with pytest.raises(Unsupported, match=rf"\b{name}\b"):
        facts.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT g, {REFUSED[name]} AS o FROM facts GROUP BY g")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT window(z, '1 hour').start AS o, count(*) AS n FROM facts GROUP BY ALL", "window"),
        ("SELECT g, first(s) IGNORE NULLS AS o FROM facts GROUP BY g", "first"),
        ("SELECT g, (SELECT last(s) FROM facts) AS o FROM facts", "last"),
        ("SELECT id, corr(d, i) OVER (PARTITION BY g) AS o FROM facts", "corr over a window"),
        ("SELECT id, last(s) FILTER (WHERE b) OVER (ORDER BY id) AS o FROM facts", "last_value with FILTER"),
        ("SELECT g, try_sum(w) AS o FROM facts GROUP BY g", "try_sum"),
        ("SELECT g, percentile(i, array(0.1, 0.9))[0] AS o FROM facts GROUP BY g", "percentile of an array"),
        ("SELECT id, map_keys(map(s, i))[0] AS o FROM facts", "map_keys|map"),
        ("SELECT id, aggregate(array(i), 0, (a, b) -> a + b) AS o FROM facts", "aggregate"),
    ],
)
def test_a_refusal_names_the_function_as_spark_sql_does(facts: Any, sql: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        facts.sql(f"CREATE MATERIALIZED VIEW refused AS {sql}")
    assert facts.sql("SHOW VIEWS").num_rows == 0


def test_what_spark_has_no_distinct_or_filter_for_is_sparks_refusal(facts: Any) -> None:
    for call in ("sum(DISTINCT i) OVER (PARTITION BY g)", "mode(DISTINCT i, true)", "rank() FILTER (WHERE b) OVER ()"):
        with pytest.raises(BadStatement):
            facts.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT {call} AS o FROM facts")
