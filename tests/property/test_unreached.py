"""What Spark does not reach cannot fail: a view whose query guards a part that fails on some rows holds Spark's answer.

A guard is whatever keeps Spark from looking: a filter below or before it, a branch, a NULL operand, a join that finds
no partner, the FILTER of an aggregate. Each query is a view made before there are rows, which batches bring, and
some with other options are made over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from itertools import cycle
from typing import Any

import pytest
from pyspark.errors import PySparkException

from viewkeeper.errors import Unsupported
from viewkeeper.plan.catalyst.session import create_own_session

from .oracle import SETTINGS

TABLES = {
    "facts": "id INT, n INT, x INT, s STRING, d DECIMAL(38,0), e DECIMAL(38,6)",
    "dims": "k INT, y INT",
}
WIDE = Decimal(10) ** 37
FACTS: tuple[tuple[Any, ...], ...] = (
    (1, 1, 0, "none", WIDE, None),
    (2, 2, 5, "7", Decimal(10) ** 32, Decimal("-1.5")),
    (3, None, 0, "", -WIDE, None),
    (4, 2, 2, "12", Decimal(3), Decimal("0.000001")),
    (5, 3, None, None, None, Decimal("99999999999999999999999999999999.999999")),
    (6, 9, 0, "x", WIDE, None),
    (7, 1, -3, "0", Decimal(0), Decimal(0)),
    (8, 2, 1, "3", None, None),
)
DIMS: tuple[tuple[Any, ...], ...] = ((1, 0), (2, 4), (3, 2), (4, 0), (None, 0))

QUERIES = (
    "SELECT id, 10 / x AS o FROM facts WHERE x <> 0",
    "SELECT id FROM facts WHERE x <> 0 AND 10 / x > 1",
    "SELECT id, o FROM (SELECT id, 10 / x AS o FROM facts WHERE x <> 0) WHERE o > 1 AND 1 / o < 1",
    "SELECT id, CASE WHEN x <> 0 THEN 10 / x END AS o FROM facts",
    "SELECT id, coalesce(n, 10 div x) AS o FROM facts WHERE n IS NOT NULL OR x <> 0",
    "SELECT id, d + e AS a, e + d AS b FROM facts WHERE e IS NULL OR abs(e) < 2",
    "SELECT id, try_add(d, e) AS a, try_multiply(d, e) AS m FROM facts",
    "SELECT id, e * d AS m, d % e AS r, d / e AS q FROM facts WHERE e IS NULL OR id = 4",
    "SELECT sum(d + e) AS o FROM facts WHERE e IS NULL OR abs(e) < 1",
    "SELECT n, sum(10 / x) FILTER (WHERE x <> 0) AS o, count(*) AS c FROM facts GROUP BY n",
    "SELECT n, max(CAST(s AS INT)) FILTER (WHERE s RLIKE '^[0-9]+$') AS o FROM facts GROUP BY n",
    "SELECT n, max_by(s, 10 / x) FILTER (WHERE x <> 0) AS o FROM facts GROUP BY n",
    "SELECT n, median(10 / x) AS o FROM facts WHERE x <> 0 GROUP BY n",
    "SELECT sum(CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS INT) END) AS o, avg(if(x = 0, 0, 1 / x)) AS a FROM facts",
    "SELECT CASE WHEN x <> 0 THEN 10 div x END AS g, count(*) AS o FROM facts GROUP BY ALL",
    "SELECT n, count(*) AS o FROM facts GROUP BY n HAVING count(x) > 0 AND sum(id) / count(x) > 0",
    "SELECT n, if(sum(x) = 0, 0, sum(id) / sum(x)) AS o FROM facts GROUP BY n",
    "SELECT n, s, sum(10 / x) AS o FROM facts WHERE x <> 0 GROUP BY ROLLUP (n, s)",
    "SELECT DISTINCT 10 div x AS o FROM facts WHERE x <> 0",
    "SELECT id, 10 div x AS o FROM facts WHERE x <> 0 ORDER BY 10 div x DESC, id LIMIT 2",
    "SELECT id, sum(10 div x) OVER (PARTITION BY n ORDER BY id) AS o FROM facts WHERE x <> 0",
    "SELECT id, CASE WHEN x <> 0 THEN sum(10 / x) OVER (PARTITION BY n, x) END AS o FROM facts WHERE x <> 0",
    "SELECT id, 10 / x AS o FROM facts WHERE x <> 0 UNION ALL SELECT k, 10 / y FROM dims WHERE y <> 0",
    "SELECT id, 10 div x AS o FROM facts WHERE x <> 0 EXCEPT SELECT k, 10 div y FROM dims WHERE y <> 0",
    "SELECT id, x / y AS o FROM facts JOIN dims ON n = k WHERE y <> 0",
    "SELECT id, k FROM facts JOIN dims ON n = k AND y <> 0 AND x / y > 0.1",
    "SELECT id, k, x / y AS o FROM facts LEFT JOIN dims ON n = k AND y <> 0",
    "SELECT id, if(k IS NULL, -1, 8 / y) AS o FROM facts LEFT JOIN (SELECT * FROM dims WHERE y > 0) ON n = k",
    "SELECT y, sum(10 / x) AS o FROM facts JOIN dims ON n = k WHERE x <> 0 GROUP BY y",
    "SELECT n, sum(10 / y) AS o, count(*) AS c FROM facts JOIN dims ON n = k AND id > 1 WHERE id < 7 GROUP BY n",
    "SELECT k, 10 / y AS o FROM dims JOIN (SELECT DISTINCT n FROM facts WHERE n BETWEEN 2 AND 3) ON n = k",
    "SELECT a.id, b.id AS other, 1 / (a.x - b.x) AS o FROM facts a JOIN facts b ON a.n = b.n AND a.x <> b.x",
    "SELECT id FROM facts WHERE EXISTS (SELECT 1 FROM dims WHERE k = n AND y <> 0 AND x / y > 0.1)",
    "SELECT id FROM facts WHERE n IN (SELECT 8 div y FROM dims WHERE y <> 0)",
    "SELECT id FROM facts WHERE x <> 0 AND 10 / x > (SELECT min(8 / y) FROM dims WHERE y <> 0)",
    "SELECT id, (SELECT max(8 / y) FROM dims WHERE k = n AND y <> 0) AS o FROM facts",
    "SELECT id, (SELECT count(*) FROM dims WHERE k = n AND y <> 0 AND 8 / y > 2) AS o FROM facts",
)
OPTIONS = (
    "share = false",
    "presum = 'always'",
    "lookahead = 'global'",
    "store = 'lazy'",
    "sync = true",
    "sync = false",
)


@pytest.mark.spark
@pytest.mark.slow
def test_what_spark_does_not_reach_does_not_fail(spark: Any, make_db: Callable[..., Any]) -> None:
    facts = [dict(zip(("id", "n", "x", "s", "d", "e"), row, strict=True)) for row in FACTS]
    dims = [{"k": k, "y": y} for k, y in DIMS]
    expected = _answers(spark, facts, dims)
    db = make_db(spark=spark, durability="none")
    db.sql(f"CREATE TABLE facts ({TABLES['facts']}, PRIMARY KEY (id))")
    db.sql(f"CREATE TABLE dims (i INT, {TABLES['dims']}, PRIMARY KEY (i))")
    views = {f"early_{i}": query for i, query in enumerate(expected)}
    db.create_views(views)
    db.put("dims", [{"i": i} | row for i, row in enumerate(dims)])
    db.put("facts", facts[::2])
    db.refresh("driver", suspend=False)
    db.put("facts", facts[1::2])
    db.refresh("driver", suspend=False)
    for (i, query), option in zip(enumerate(list(expected)[::2]), cycle(OPTIONS), strict=False):
        with suppress(Unsupported):  # not every option goes with every query
            db.sql(f"CREATE MATERIALIZED VIEW late_{i} WITH ({option}) AS {query}")
            views[f"late_{i}"] = query
    assert len(views) > 1.3 * len(expected)
    assert {view: _sorted(db.read(view)) for view in views} == {view: expected[query] for view, query in views.items()}


def _answers(spark: Any, facts: list[dict[str, Any]], dims: list[dict[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    own = create_own_session(spark, SETTINGS)
    own.createDataFrame(facts, TABLES["facts"]).createOrReplaceTempView("facts")
    own.createDataFrame(dims, TABLES["dims"]).createOrReplaceTempView("dims")
    found = {}
    for query in QUERIES:
        with suppress(PySparkException):  # what Spark itself reaches
            found[query] = _sorted(own.sql(query).toArrow())
    assert len(found) >= len(QUERIES) - 2, set(QUERIES) - set(found)
    return found


def _sorted(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
