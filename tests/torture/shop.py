"""The database that is tortured: two tables, views of every kind over them, changes, and what each view must hold.

Runs as a program too, the victim:  python shop.py URL WORK LANE FIRST STEPS [MASTER [SETTING=VALUE…]]

It does not start Spark to plan: the queries' plans were read once, when the template was built, and lie beside it.
With a master, faults are armed in that cluster's Python workers, not in the program itself.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb

import viewkeeper as vk

TABLES = {
    "orders": "order_id BIGINT, customer BIGINT, item BIGINT, quantity INT, price DECIMAL(10,2), "
    "PRIMARY KEY (order_id)",
    "items": "item BIGINT, category STRING, cost DECIMAL(10,2), PRIMARY KEY (item)",
}
VIEWS = {
    "by_category": "SELECT i.category, count(*) AS n, sum(o.quantity * o.price) AS revenue "
    "FROM orders o JOIN items i ON o.item = i.item GROUP BY i.category",
    "customers": "SELECT customer, min(price) AS least, max(price) AS most, count(DISTINCT item) AS items "
    "FROM orders GROUP BY customer",
    "unsold": "SELECT item, category FROM items i WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.item = i.item)",
    "dearest": "SELECT order_id, price FROM orders ORDER BY price DESC, order_id LIMIT 5",
    "ranked": "SELECT order_id, customer, row_number() OVER (PARTITION BY customer ORDER BY price DESC, order_id) "
    "AS place FROM orders",
    "bulk": "SELECT customer, quantity FROM orders WHERE quantity > 2",
    "totals": "SELECT count(*) AS categories, sum(n) AS sold FROM by_category",
}
EXTRA = {
    "spent": "SELECT customer, sum(quantity * price) AS spent FROM orders GROUP BY customer",
    "spent2": "SELECT customer, sum(quantity) AS pieces, count(*) AS n FROM orders GROUP BY customer",
    "spent3": "SELECT customer, sum(quantity * price) AS spent FROM orders WHERE quantity > 1 GROUP BY customer",
}
ORDERS, ITEMS = 400, 40


def order(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "order_id": number,
        "customer": rng.randrange(20),
        "item": 2 * rng.randrange(ITEMS // 2 + 5),  # nobody orders the odd ones
        "quantity": rng.randrange(1, 6),
        "price": f"{rng.randrange(100, 99_999) / 100:.2f}",
    }


def item(number: int, rng: random.Random) -> dict[str, Any]:
    return {"item": number, "category": f"c{rng.randrange(6)}", "cost": f"{rng.randrange(100, 9_999) / 100:.2f}"}


def build(url: str, spark: Any) -> None:
    """The template, and beside it the plans of all its queries."""
    rng = random.Random(1)
    path = Path(url.removeprefix("lmdb:"))
    plans = {}
    with vk.open(url, spark=spark) as db:
        for name, columns in TABLES.items():
            db.sql(f"CREATE TABLE {name} ({columns})")
        db.put("items", [item(i, rng) for i in range(ITEMS)])
        db.put("orders", [order(i, rng) for i in range(ORDERS)])
        for name, query in {**VIEWS, **EXTRA}.items():
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
            plans[query] = db._catalog().view(name).plan
        for name in EXTRA:
            db.sql(f"DROP MATERIALIZED VIEW {name}")
    (path.parent / "plans.json").write_text(json.dumps(plans))


def change(db: Any, step: int) -> None:
    """Some write calls: orders come, change and go, items too."""
    rng = random.Random(f"step {step}")
    db.put("orders", [order(rng.randrange(ORDERS + 100), rng) for _ in range(rng.randrange(1, 30))])
    db.delete("orders", [rng.randrange(ORDERS + 100) for _ in range(rng.randrange(1, 10))])
    db.put("items", [item(rng.randrange(ITEMS + 10), rng) for _ in range(rng.randrange(1, 4))])
    if step % 3 == 0:
        db.delete("items", rng.randrange(ITEMS))


def differences(db: Any) -> list[str]:
    """The views that are not their query, run from nothing by DuckDB over the tables at the views' own batch."""
    cut = db._store.published_batch().cut
    # A suspended view shows another batch, a scheduled one its own cut.
    kept = [v for v in db._catalog().views if v.suspended is None and (v.own_cut is None or v.own_cut.cut == cut)]
    there = {v.table.name: v.query for v in kept}
    with db.snapshot() as state, duckdb.connect() as oracle:
        for name in TABLES:
            oracle.register(name, state.read(name))
        found = {name: state.read(name) for name in there}
        wrong = []
        for name, query in there.items():
            expected = Counter(oracle.sql(query).fetchall())
            rows = oracle.from_arrow(found[name])
            oracle.register(name, found[name])
            if Counter(rows.fetchall()) != expected:
                wrong.append(name)
        return wrong


def state_files(url: str) -> list[Path]:
    return sorted((Path(url.removeprefix("lmdb:")) / "state").glob("*.vkr"))


def listed(db: Any) -> set[str]:
    """The state files that the published batch lists."""
    record = db._store.published_batch().record
    manifests: Iterable[Mapping[str, Any]] = (record["manifest"], *record.get("sets", {}).values())
    return {entry[1] for m in manifests for runs in m["runs"].values() for entry in runs}


def planned(url: str) -> None:
    """Take plans from the library instead of asking Spark."""
    from viewkeeper.database import Database
    from viewkeeper.plan import catalyst
    from viewkeeper.plan.compile.compiler import ViewPlan

    library = json.loads((Path(url.removeprefix("lmdb:")).parent / "plans.json").read_text())
    catalyst.read_query = lambda _spark, text, _tables: ViewPlan.from_json(library[text]).query  # type: ignore[assignment]
    Database._spark = lambda self: None  # type: ignore[method-assign]


def work(db: Any, kind: str, lane: str, first: int, steps: int) -> None:
    match kind:
        case "batches":
            for step in range(first, first + steps):
                change(db, step)
                db.refresh(lane)
                print(step, flush=True)
        case "run":
            with db.maintain(lane=lane, max_delay=0.0):
                for step in range(first, first + steps):
                    change(db, step)
                    time.sleep(0.01)
                    print(step, flush=True)
        case "catch up":  # with so many MB for data and no more, however much waits
            used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (used + (first << 20),) * 2)
            before = db.status().epoch
            try:
                db.refresh(lane)
                print("done", db.status().epoch - before, flush=True)
            except vk.ViewkeeperError as error:
                print(error, flush=True)
        case "create":
            change(db, first)
            db.sql(f"CREATE MATERIALIZED VIEW spent AS {EXTRA['spent']}")
        case "replace":
            db.sql(f"CREATE MATERIALIZED VIEW spent AS {EXTRA['spent']}")
            change(db, first)
            db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW spent AS {EXTRA['spent3']}")  # the same columns: in place
            change(db, first + 1)
            db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW spent AS {EXTRA['spent2']}")  # others: another table
        case "drop":
            change(db, first)
            db.sql("DROP MATERIALIZED VIEW unsold")
            db.sql("DROP MATERIALIZED VIEW ranked")
        case "suspend":
            change(db, first)
            db.sql("ALTER MATERIALIZED VIEW customers SUSPEND")
            change(db, first + 1)
            db.sql("ALTER MATERIALIZED VIEW customers RESUME")
        case "schedule":
            db.sql(f"CREATE MATERIALIZED VIEW spent WITH (strategy = 'ISN', interval = 3600) AS {EXTRA['spent']}")
            change(db, first)
            db.refresh()
        case "tables":
            db.sql("CREATE TABLE notes (note BIGINT, text STRING, PRIMARY KEY (note))")
            db.put("notes", [{"note": n, "text": "x"} for n in range(100)])
            db.sql("ALTER TABLE items ADD COLUMN weight INT")
            change(db, first)
            db.refresh()
            db.sql("ALTER TABLE items DROP COLUMN weight")
            db.sql("DROP TABLE notes")
        case _:
            raise AssertionError(kind)


def on_cluster(master: str, settings: Iterable[str]) -> Any:
    """A session there, with a driver on loopback and this process's armed faults in its workers."""
    from viewkeeper.spark import session

    armed = {f"spark.executorEnv.{k}": v for k, v in os.environ.items() if k.startswith("VK_")}
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g"}
    given = dict(s.split("=", 1) for s in settings)
    return session(master, {**armed, **local, "spark.executor.memory": "500m", **given})


def main(url: str, kind: str, lane: str, first: str, steps: str, master: str = "", *settings: str) -> None:
    if lane == "driver":
        planned(url)
    with vk.open(url, retention=0, spark=on_cluster(master, settings) if master else None) as db:
        work(db, kind, lane, int(first), int(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
