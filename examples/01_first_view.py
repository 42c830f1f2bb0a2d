"""The smallest thing: a table, a view over it, a change that reaches it."""

import viewkeeper as vk

with vk.open("lmdb:./first") as db:
    db.sql("CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(12,2), PRIMARY KEY (item_id))")
    db.sql("""CREATE MATERIALIZED VIEW by_category AS
              SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category""")
    db.put("items", [{"item_id": 1, "category": "toys", "price": "9.99"}])
    db.refresh()
    print(db.get("by_category", "toys"))
    assert db.get("by_category", "toys")["n"] == 1
