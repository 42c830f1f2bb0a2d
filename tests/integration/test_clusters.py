"""Clustered views against Spark: the text that an audit runs, and the join that a read makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PAGE = "CREATE MATERIALIZED VIEW page CLUSTER BY (item_id) OF items, reviews, offers"


def test_clustered_reads_are_sparks_join(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE items (item_id BIGINT, name STRING, PRIMARY KEY (item_id))")
    db.sql("CREATE TABLE reviews (review_id INT, item_id BIGINT, stars INT, PRIMARY KEY (review_id))")
    db.sql("CREATE TABLE offers (item_id BIGINT, shop STRING, price DECIMAL(8,2), PRIMARY KEY (item_id, shop))")
    db.put("items", [{"item_id": n, "name": f"item {n}"} for n in range(40)])
    db.put("reviews", [{"review_id": n, "item_id": n * 7 % 50 if n % 9 else None, "stars": n % 6} for n in range(90)])
    db.put("offers", [{"item_id": n % 35, "shop": f"s{n % 4}", "price": n} for n in range(70)])
    db.sql(PAGE)
    db.put("reviews", [{"review_id": 3, "item_id": 4, "stars": 1}, {"review_id": 200, "item_id": 39, "stars": 5}])
    db.delete("items", [5, 6])
    db.refresh()
    audit = db.audit("page")
    assert audit.is_right
    assert audit.views[0].rows == 38 + 91 + 70
    for how in ("inner", "left"):
        word = "JOIN" if how == "inner" else "LEFT JOIN"
        query = f"""SELECT i.item_id, i.name, r.review_id, r.stars, o.shop, o.price FROM items i
                    {word} reviews r ON r.item_id = i.item_id {word} offers o ON o.item_id = i.item_id"""
        expected = sorted(map(str, db.sql(query, engine="spark").rows))
        found = [row for key in range(51) for row in db.join("page", key, how)]
        assert sorted(map(str, found)) == expected
