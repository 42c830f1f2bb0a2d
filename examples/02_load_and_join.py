"""Load frames, join and aggregate, update and delete; read back as Arrow."""

import pandas as pd
import pyarrow as pa

import viewkeeper as vk

with vk.open("lmdb:./joined") as db:
    db.sql("CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(12,2), PRIMARY KEY (item_id))")
    db.sql("CREATE TABLE orders (order_id BIGINT, item_id BIGINT, quantity INT, PRIMARY KEY (order_id))")
    db.put(
        "items",
        pa.table({"item_id": [1, 2, 3], "category": ["toys", "toys", "books"], "price": ["5.00", "7.50", "20.00"]}),
    )
    db.put("orders", pd.DataFrame({"order_id": range(100), "item_id": [1 + i % 3 for i in range(100)], "quantity": 1}))
    db.sql("""CREATE MATERIALIZED VIEW revenue AS
              SELECT i.category, count(*) AS orders, sum(o.quantity * i.price) AS revenue
              FROM orders o JOIN items i ON o.item_id = i.item_id GROUP BY i.category""")
    print(db.read("revenue").to_pylist())
    db.update("items", 3, {"price": "25.00"})  # reaches the 33 orders of this item through one lookup
    db.delete("orders", list(range(50)))
    print(db.refresh())
    books = db.get("revenue", "books")
    print(books)
    assert str(books["revenue"]) == "425.00"
