"""A process that is killed while a type becomes a wider one under views: both have switched, or neither has."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import other, url_of
from tests.integration.test_altered_tables import TABLES, WIDENED, check, put

pytestmark = [pytest.mark.deep, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
with vk.open(url) as db:
    db.put("items", {"id": 1, "kind": "a", "price": 3, "stock": 2})
    db.sql("ALTER TABLE items ALTER COLUMN price TYPE BIGINT")
"""


@pytest.mark.parametrize(
    "point", ["view.planned", "load.1.after", "load.2.after", "commit.4.before@2", "view.published"]
)
def test_a_killed_widening(make_db: Callable[..., Any], spark: Any, point: str) -> None:
    db = make_db("shop", spark=spark)
    for table in TABLES:
        db.sql(table)
    put(db, 0, "items", "orders")
    db.create_views(WIDENED)
    url = url_of(db)
    db.close()
    with other(PROGRAM, url, env={"VK_CRASH_AT": point}) as process:
        assert process.process.wait(300) == -signal.SIGKILL
    db = make_db("shop", spark=spark)
    done = point == "view.published"
    types = {name: str(db.table(name).schema.field("price").type) for name in ("items", "narrow")}
    assert types == dict.fromkeys(types, "int64" if done else "int32")
    db.refresh()
    check(db)
    db.sql("ALTER TABLE items ALTER COLUMN price TYPE BIGINT")
    db.put("items", {"id": 2, "kind": "a", "price": 5_000_000_000, "stock": 2})
    db.refresh()
    check(db)
