"""Views that stay fresh by themselves, and reads that say how fresh an answer must be."""

import viewkeeper as vk

with vk.open("lmdb:./live") as db:
    db.sql("CREATE TABLE readings (sensor STRING, at BIGINT, value DOUBLE, PRIMARY KEY (sensor, at))")
    db.sql("""CREATE MATERIALIZED VIEW latest AS
              SELECT sensor, count(*) AS n, min(value) AS low, max(value) AS high, avg(value) AS mean
              FROM readings GROUP BY sensor""")
    with db.maintain(on_batch=lambda batch: print(f"batch {batch.epoch}: {batch.changes} changes")):
        for at in range(20):
            token = db.put("readings", [{"sensor": s, "at": at, "value": at * 0.5} for s in ("door", "roof")])
        print(db.get("latest", "door"))  # the published batch, whichever that is
        mine = db.get("latest", "door", after=token)  # with the last write in it
        print(mine)
        assert mine["n"] == 20
        with db.snapshot() as now:  # tables and views of one moment
            assert now.read("readings").num_rows == sum(row["n"] for row in now.scan("latest"))
