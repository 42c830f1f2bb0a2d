"""A random life of a database: what a user may do with it, in any order, and everything read against Spark.

A seed draws the steps: writes, views of every shape and option, many at once, views over views, indexes, batches in
either lane, suspensions, audits, closing and opening. The rows that should be there are kept beside (`Life.rows`). A
refused statement has changed nothing, so a life goes on as if it had not been said; any other error ends it.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from viewkeeper import ANY, LATEST
from viewkeeper.errors import BadStatement, InUse, Timeout, Unsupported
from viewkeeper.plan.catalyst.session import create_own_session

from .compare import rows_difference
from .oracle import SETTINGS

Row = dict[str, Any]
Draw = Callable[[Random], Any]
Values = tuple[Any, ...]


def one_of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


_GROUP = one_of(None, 0, 1, 2, 3, 4)
_TIMES = one_of(None, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2021, 6, 3, 4, 5, 6, tzinfo=dt.UTC))
_AMOUNTS = one_of(None, Decimal("1.25"), Decimal("-3.10"), Decimal("0.00"), Decimal("99999999.99"))
TABLES: dict[str, dict[str, tuple[str, Draw]]] = {
    "a": {
        "k": ("bigint", lambda rng: rng.randrange(40)),
        "g": ("int", _GROUP),
        "s": ("string", one_of("x", "y", "z", "", "Ä", "x y", None)),
        "d": ("decimal(10,2)", _AMOUNTS),
        "f": ("double", one_of(None, 1.5, -2.25, 0.0, 1e10, 0.1)),
        "ts": ("timestamp", _TIMES),
    },
    "b": {
        "k1": ("int", lambda rng: rng.randrange(6)),
        "k2": ("string", one_of("p", "q", "r")),
        "v": ("bigint", one_of(None, 1, -7, 10**12, 3)),
        "g": ("int", _GROUP),
    },
    "c": {
        "id": ("string", one_of("x", "y", "z", "", "q", "Ä")),
        "g": ("int", _GROUP),
        "w": ("smallint", one_of(None, 1, -2, 300)),
    },
}
KEYS = {"a": ("k",), "b": ("k1", "k2"), "c": ("id",)}

QUERIES = (
    "SELECT g, count(*) AS n, sum(d) AS sd, min(s) AS ms FROM a WHERE k > {k} GROUP BY g",
    "SELECT k, s, d FROM a WHERE g = {n}",
    "SELECT sum(d) AS x, avg(f) AS y, count(DISTINCT s) AS z FROM a WHERE g >= {n}",
    "SELECT s, max(ts) AS m, max_by(d, k) AS mb FROM a WHERE d > {n}.5 GROUP BY s HAVING count(*) > {n}",
    "SELECT a.k, b.k1, b.k2, a.d * b.v AS p FROM a JOIN b ON a.g = b.g WHERE b.k1 <> {n}",
    "SELECT a.g, sum(a.d) AS sd, sum(b.v) AS sv, count(*) AS n FROM a JOIN b ON a.g = b.g GROUP BY a.g",
    "SELECT a.k, a.s, c.w FROM a LEFT JOIN c ON a.s = c.id AND c.g > {n}",
    "SELECT c.id, sum(b.v) AS sv FROM a JOIN b ON a.g = b.g JOIN c ON a.s = c.id WHERE a.k < {k} GROUP BY c.id",
    "SELECT id, w FROM c WHERE NOT EXISTS (SELECT 1 FROM a WHERE a.s = c.id AND a.g > {n})",
    "SELECT id FROM c WHERE g IN (SELECT g FROM b WHERE v > {n})",
    "SELECT k, row_number() OVER (PARTITION BY g ORDER BY d, k) AS r, sum(d) OVER (PARTITION BY g ORDER BY k) AS sd "
    "FROM a WHERE k <> {n}",
    "SELECT g FROM a WHERE k > {k} UNION SELECT g FROM b",
    "SELECT s AS c FROM a WHERE g < {n} UNION ALL SELECT id FROM c",
    "SELECT g, s FROM a EXCEPT SELECT g, id FROM c WHERE w > {n}",
    "SELECT DISTINCT g, s FROM a WHERE f < {n}",
    "SELECT k, s FROM a ORDER BY d DESC NULLS LAST, k LIMIT {l}",
    "SELECT g, s, count(*) AS n, sum(f) AS x FROM a WHERE k > {n} GROUP BY ROLLUP (g, s)",
    "SELECT x.g, count(*) AS n FROM a x JOIN a y ON x.g = y.g AND x.k < y.k WHERE y.d >= {n} GROUP BY x.g",
    "SELECT b.k1, b.k2, (SELECT max(d) FROM a WHERE a.g = b.g AND a.k > {n}) AS m FROM b",
    "SELECT a.k, b.k1, b.k2 FROM a FULL JOIN b ON a.g = b.g AND a.k = b.k1",
    "SELECT count(*) AS n, sum(v) AS s FROM b WHERE g = {n} HAVING sum(v) > {n}",
    "SELECT g, median(d) AS m, percentile_cont(0.3) WITHIN GROUP (ORDER BY f) AS p FROM a WHERE k < {k} GROUP BY g",
    "SELECT v, count(*) AS n, avg(g) AS ag FROM b WHERE k2 > 'p' GROUP BY v",
    "SELECT g, max(v) AS m, min(v) AS l, count(v) AS n FROM b WHERE k1 <> {n} GROUP BY g",
    "SELECT k, if(g = 0, NULL, d / g) AS q, coalesce(s, CAST(k AS STRING)) AS t FROM a WHERE g <> 0 OR k > {k}",
)
SYNC, LAZY, APART = "sync = true", "store = 'lazy'", "store = 'none'"
OPTIONS = (
    *("", "", "", "share = false", "lookahead = 'global'", "lookahead = 'local'", "presum = 'always'"),
    *(APART, SYNC, LAZY, LAZY),
)
MANY = 12
"""Views from which on some go again, and so many at most are compared in passing."""


@dataclass(frozen=True)
class Made:
    """A view that is there."""

    query: str
    option: str = ""
    source_view: str = ""
    """The view that it reads."""


class Life:
    """One database, what should be in it, and what happened."""

    def __init__(self, seed: int, open_: Callable[..., Any], spark: Any) -> None:
        self.rng = Random(seed)
        self._open, self._spark, self._oracle_session = open_, spark, create_own_session(spark, SETTINGS)
        self.db = self._open_database()
        self.rows: dict[str, dict[Values, Row]] = {table: {} for table in TABLES}
        self.views: dict[str, Made] = {}
        self.indexes: list[str] = []
        self.history: list[str] = [f"seed {seed}"]
        self.refused: Counter[str] = Counter()
        self._name_count = 0
        for table, columns in TABLES.items():
            shape = ", ".join(f"{name} {type_}" for name, (type_, _) in columns.items())
            self.db.sql(f"CREATE TABLE {table} ({shape}, PRIMARY KEY ({', '.join(KEYS[table])}))")

    def live(self, steps: int) -> None:
        kinds, weights = zip(*STEPS.items(), strict=True)
        for _ in range(steps):
            self.rng.choices(kinds, weights)[0](self)
        self.record("refresh at the end")
        self.db.refresh("driver")
        self.check(len(self.views))

    def record(self, what: str) -> None:
        self.history.append(what)

    def try_statement(self, description: str, statement: Callable[..., Any], *arguments: Any) -> bool:
        """Whether a statement is made, or refused."""
        self.record(description)
        try:
            statement(*arguments)
        except (Unsupported, BadStatement, InUse) as refusal:
            self.refused[f"{description.split()[0]} {refusal}"] += 1
            self.history[-1] += f" ({refusal.code})"
            return False
        return True

    def new_name(self, prefix: str) -> str:
        self._name_count += 1
        return f"{prefix}{self._name_count}"

    def fill_template(self, template: str) -> str:
        """A query with other constants."""
        return template.format(n=self.rng.randrange(-1, 5), k=self.rng.randrange(40), l=self.rng.randrange(1, 9))

    def row(self, table: str) -> Row:
        return {name: draw(self.rng) for name, (_, draw) in TABLES[table].items()}

    def independent_view(self) -> str | None:
        """One that no other reads and that reads none."""
        read = {made.source_view for made in self.views.values()}
        free = [name for name, made in self.views.items() if not made.source_view and name not in read]
        return self.rng.choice(free) if free else None

    def reopen(self) -> None:
        self.db.close()
        self.db = self._open_database()

    def _open_database(self) -> Any:
        return self._open(spark=self._spark, lazy_cache_bytes=0)

    # --- What is read ------------------------------------------------------------------------------------------------

    def check(self, max_views: int = MANY) -> None:
        """Tables, and as many views, are as Spark says; lazy ones by their keys, too."""
        self.to_spark()
        for table in TABLES:
            self._check_table(table)
        shown = [name for name, made in self.views.items() if made.option != APART]
        for view in self.rng.sample(shown, min(max_views, len(shown))):
            self.check_view(view)

    def to_spark(self) -> None:
        for table, columns in TABLES.items():
            shape = ", ".join(f"{name} {type_}" for name, (type_, _) in columns.items())
            data = [tuple(row.values()) for row in self.rows[table].values()]
            self._oracle_session.createDataFrame(data, shape).createOrReplaceTempView(table)
        for made in self.views.values():
            if made.source_view:
                self._oracle_session.sql(self.views[made.source_view].query).createOrReplaceTempView(made.source_view)

    def check_view(self, view: str, level: Any = ANY) -> None:
        made, held = self.views[view], self.db.read(view, level)
        self._same(
            f"{view} {made}",
            _plain(self._oracle_session.sql(made.query).toArrow().to_pylist()),
            _plain(held.to_pylist()),
        )
        key = [c["column"] for c in self.db.sql(f"DESCRIBE {view}").to_pylist() if c["key"]]
        if made.option != LAZY or not key:
            return
        for row in self.rng.sample(held.to_pylist(), min(3, held.num_rows)):
            first = row[key[0]]
            same = [r for r in held.to_pylist() if repr(r[key[0]]) == repr(first)]
            self._same(f"{view} by {first!r}", _plain(same), _plain(self.db.scan(view, (first,))))

    def _check_table(self, table: str) -> None:
        there = list(self.rows[table].values())
        self._same(table, _plain(there), _plain(self.db.read(table).to_pylist()))
        column = self.rng.choice(list(TABLES[table]))
        value = self.rng.choice([row[column] for row in there] or [None])
        if value is not None:
            found = [row for row in there if row[column] == value]
            self._same(
                f"{table}, {column} = {value!r}", _plain(found), _plain(self.db.scan(table, where={column: value}))
            )

    def _same(self, what: str, want: list[Values], have: list[Values]) -> None:
        wrong = rows_difference(want, have)
        assert wrong is None, f"{what}: {wrong}"


def _plain(rows: Any) -> list[Values]:
    """Rows that can be counted; floats to ten digits, since Spark adds them in any order."""
    return [tuple(float(f"{v:.10g}") + 0.0 if isinstance(v, float) else v for v in row.values()) for row in rows]


# --- What happens ---------------------------------------------------------------------------------------------------


def _key(table: str, row: Row) -> Values:
    return tuple(row[column] for column in KEYS[table])


def _argument(key: Values) -> Any:
    return key if len(key) > 1 else key[0]


def put(life: Life) -> None:
    table = life.rng.choice(list(TABLES))
    rows = [life.row(table) for _ in range(life.rng.choice((1, 2, 5, 30)))]
    found = {_key(table, row): row for row in rows}
    life.record(f"put {len(found)} into {table}")
    life.db.put(table, list(found.values()))
    life.rows[table] |= found


def delete(life: Life) -> None:
    table = life.rng.choice(list(TABLES))
    there = list(life.rows[table])
    gone = life.rng.sample(there, min(len(there), life.rng.choice((1, 3, 40))))
    life.record(f"delete {gone} from {table}")
    life.db.delete(table, [_argument(key) for key in gone])
    for key in gone:
        del life.rows[table][key]


def update(life: Life) -> None:
    table = life.rng.choice(list(TABLES))
    if not life.rows[table]:
        return
    key, row = life.rng.choice(list(life.rows[table])), life.row(table)
    column = life.rng.choice([name for name in row if name not in KEYS[table]])
    life.record(f"update {table} {key} {column}")
    life.db.update(table, _argument(key), {column: row[column]})
    life.rows[table][key] = life.rows[table][key] | {column: row[column]}


def create(life: Life) -> None:
    name, option = life.new_name("v"), life.rng.choice(OPTIONS)
    made = Made(life.fill_template(life.rng.choice(QUERIES)), option)
    options = f"WITH ({option})" if option else ""
    if life.try_statement(
        f"create {name} {made}", life.db.sql, f"CREATE MATERIALIZED VIEW {name} {options} AS {made.query}"
    ):
        life.views[name] = made


def create_many(life: Life) -> None:
    template = life.rng.choice(QUERIES)
    made = {life.new_name("v"): life.fill_template(template) for _ in range(life.rng.choice((5, 35)))}
    if life.try_statement(f"create {len(made)} views: {made}", life.db.create_views, made):
        life.views |= {name: Made(query) for name, query in made.items()}


def create_over(life: Life) -> None:
    below = [name for name, made in life.views.items() if not made.source_view and made.option != APART]
    if not below:
        return
    over, name = life.rng.choice(below), life.new_name("v")
    column = life.db.read(over).column_names[0]
    query = f"SELECT {column} AS z, count(*) AS n FROM {over} GROUP BY {column}"
    if life.try_statement(f"create {name} {query}", life.db.sql, f"CREATE MATERIALIZED VIEW {name} AS {query}"):
        life.views[name] = Made(query, source_view=over)


def replace(life: Life) -> None:
    if name := life.independent_view():
        query = life.fill_template(life.rng.choice(QUERIES))
        if life.try_statement(
            f"replace {name} {query}", life.db.sql, f"CREATE OR REPLACE MATERIALIZED VIEW {name} AS {query}"
        ):
            life.views[name] = Made(query)


def drop(life: Life) -> None:
    while len(life.views) > MANY and (name := life.independent_view()):
        life.record(f"drop {name}")
        life.db.sql(f"DROP MATERIALIZED VIEW {name}")
        del life.views[name]


def index(life: Life) -> None:
    table, name = life.rng.choice(list(TABLES)), life.new_name("i")
    column, other = life.rng.sample([c for c in TABLES[table] if c not in KEYS[table]], 2)
    more = life.rng.choice(("", f" INCLUDE ({other})")) + life.rng.choice(("", f" WITH ({SYNC})"))
    on = f"{table} ({column}){more}"
    if life.try_statement(f"index {name} on {on}", life.db.sql, f"CREATE INDEX {name} ON {on}"):
        life.indexes.append(name)


def drop_index(life: Life) -> None:
    if life.indexes:
        name = life.rng.choice(life.indexes)
        life.record(f"drop index {name}")
        life.db.sql(f"DROP INDEX {name}")
        life.indexes.remove(name)


def refresh(life: Life) -> None:
    life.record("refresh")
    life.db.refresh("driver", suspend=False)
    if life.rng.random() < 0.3:
        life.record("check")
        life.check()


def refresh_on_spark(life: Life) -> None:
    if len(life.views) < 3 * MANY:
        life.record("refresh on Spark")
        life.db.refresh("spark", suspend=False)
        life.check()


def reopen(life: Life) -> None:
    life.record("reopen")
    life.reopen()


def suspend(life: Life) -> None:
    name = life.independent_view()
    if name and life.try_statement(f"suspend {name}", life.db.sql, f"ALTER MATERIALIZED VIEW {name} SUSPEND"):
        put(life)
        if life.rng.random() < 0.5:
            life.db.refresh("driver", suspend=False)
        life.record(f"resume {name}")
        life.db.sql(f"ALTER MATERIALIZED VIEW {name} RESUME")


def audit(life: Life) -> None:
    life.record("audit")
    found = life.db.audit()
    assert found.is_right, f"{found}"


def look(life: Life) -> None:
    """At a synchronous view, which needs no batch, or at the newest state of another."""
    shown = [name for name, made in life.views.items() if made.option != APART]
    if shown:
        name = life.rng.choice(shown)
        life.record(f"look at {name}")
        life.to_spark()
        level = ANY if life.views[name].option == SYNC else LATEST
        try:
            life.check_view(name, level)
        except Timeout:  # opened again since: nobody maintains, and this view has to wait for a batch
            life.db.refresh("driver", suspend=False)
            life.check_view(name, level)


STEPS: dict[Callable[[Life], None], float] = {
    **{put: 14, delete: 6, update: 4, refresh: 12, refresh_on_spark: 1.5, reopen: 1.5, suspend: 1, audit: 0.7, look: 3},
    **{create: 10, create_many: 0.5, create_over: 2, replace: 1, drop: 4, index: 3, drop_index: 1},
}
"""How often."""
