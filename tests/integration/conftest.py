"""What the tests of live databases share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processes import BY_CATEGORY, SHOP


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any) -> Any:
    """A table of items, and a view of them by category."""
    db = make_db("shop", spark=spark)
    db.sql(SHOP)
    db.sql(BY_CATEGORY)
    return db
