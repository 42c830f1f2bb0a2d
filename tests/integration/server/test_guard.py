"""What the SQL of somebody else reaches: tables and views; no file, no class, no program, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.errors import ViewkeeperError
from viewkeeper.sql.query_limits import QueryLimits
from viewkeeper.sql.statements import required_permission, run


def test_what_a_readers_sql_reaches(spark: Any, tmp_path: Path) -> None:
    """Only tables and views: no file, no class, no program, no write."""
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    with vk.open(f"lmdb:{tmp_path / 'db'}", spark=spark) as db:
        db.sql("CREATE TABLE items (item_id BIGINT, category STRING, PRIMARY KEY (item_id))")
        db.put("items", [{"item_id": 1, "category": "a"}, {"item_id": 2, "category": "a"}])
        good = run(
            db,
            "SELECT category, count(*) AS n FROM items GROUP BY category",
            engine="spark",
            query_limits=QueryLimits(1000),
        ).rows
        assert good == [{"category": "a", "n": 2}]
        nested = "WITH x AS (SELECT * FROM items) SELECT * FROM x WHERE item_id IN (SELECT max(item_id) FROM items)"
        found = run(db, nested, engine="spark", query_limits=QueryLimits(1000)).rows
        assert len(found) == 1
        for text in (
            f"SELECT * FROM text.`{secret}`",
            f"SELECT item_id FROM items WHERE category IN (SELECT value FROM text.`{secret}`)",
            "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
            "SELECT `java_method`('java.lang.System', 'getProperty', 'user.home')",
            "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', 'user.home')",
            "SELECT TRANSFORM(item_id) USING 'cat' AS (x) FROM items",
            "SELECT * FROM items WHERE item_id IN (SELECT TRANSFORM(item_id) USING 'cat' AS (x) FROM items)",
            f"FROM items INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING csv SELECT *",
            "FROM items INSERT INTO other SELECT *",
            "WITH x AS (SELECT 1) INSERT INTO items SELECT * FROM x",
        ):
            assert required_permission(text) == "read", text
            with pytest.raises(ViewkeeperError):
                run(db, text, query_limits=QueryLimits(1000))
            assert not (tmp_path / "out").exists()
        assert db.read("items").num_rows == 2
