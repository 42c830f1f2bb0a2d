"""A table and a view as Spark DataFrames: read, join with other data, write back."""

from pyspark.sql import SparkSession

import viewkeeper as vk
from viewkeeper.spark import register, session

spark = SparkSession.getActiveSession() or session("local[2,4]")
register(spark)
URL = "lmdb:./frames"

with vk.open(URL, spark=spark) as db:
    db.sql("CREATE TABLE people (id BIGINT, country STRING, score INT, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW by_country AS SELECT country, sum(score) AS score FROM people GROUP BY country")
    made = spark.range(1000).selectExpr(
        "id", "element_at(array('de', 'fr', 'it'), int(id % 3) + 1) AS country", "int(id % 7) AS score"
    )
    made.write.format("viewkeeper").options(db=URL, table="people").mode("append").save()
    db.refresh()

    names = spark.createDataFrame([("de", "Germany"), ("fr", "France"), ("it", "Italy")], "country string, name string")
    view = spark.read.format("viewkeeper").options(db=URL, table="by_country").load()
    for row in view.join(names, "country").orderBy("name").collect():
        print(row.name, row.score)

    some = spark.read.format("viewkeeper").options(db=URL, table="people").load().where("id < 10")  # a key range
    assert some.count() == 10
    some.select("id").write.format("viewkeeper").options(db=URL, table="people", operation="delete").mode(
        "append"
    ).save()
    assert spark.read.format("viewkeeper").options(db=URL, table="people").load().count() == 990
