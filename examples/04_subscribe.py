"""Be told what changed, exactly once, and go on later from where one stopped."""

import viewkeeper as vk

with vk.open("lmdb:./told") as db:
    db.sql("CREATE TABLE stock (item STRING, shelf INT, pieces INT, PRIMARY KEY (item, shelf))")
    db.sql("""CREATE MATERIALIZED VIEW scarce AS
              SELECT item, sum(pieces) AS pieces FROM stock GROUP BY item HAVING sum(pieces) < 10""")
    with db.maintain():
        deltas = db.subscribe("scarce", timeout=10)
        token = next(deltas).token  # the rows there are now: none
        db.put("stock", [{"item": "kite", "shelf": 1, "pieces": 4}, {"item": "atlas", "shelf": 1, "pieces": 40}])
        delta = next(deltas)
        for change in delta.changes():
            print(change.kind, change.after)
        assert [change.after["item"] for change in delta.changes()] == ["kite"]
        deltas.close()

        db.put(
            "stock",
            {"item": "kite", "shelf": 2, "pieces": 50},
        )  # no longer scarce, while nobody listens
        for change in next(db.subscribe("scarce", since=delta.token, timeout=10)).changes():
            print(change.kind, change.before)
            assert change.kind == "delete"
