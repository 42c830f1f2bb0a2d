"""Random lives of a database (`life`), on every kind of store. A failure says its seed and the last steps.

`pytest -m deep tests/property/test_lives.py` lives longer ones; `VK_SEED=…` makes it begin with other seeds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import databases

from .life import Life

FIRST = int(os.environ.get("VK_SEED", "1"))
STORES = ("lmdb", "rocksdb", "hbase")
SHORT = [pytest.param(1, "lmdb", 30), pytest.param(2, "hbase", 15)]
LONG = [pytest.param(FIRST + n, STORES[n % 3], 400, marks=pytest.mark.deep) for n in range(12)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "store", "steps"), [*SHORT, *LONG])
def test_a_random_life_keeps_every_view_right(
    seed: int, store: str, steps: int, spark: Any, tmp_path: Path, record_property: Any
) -> None:
    with databases(store, tmp_path) as make:
        life = Life(seed, make, spark)
        try:
            life.live(steps)
        except BaseException as error:
            told = "\n  ".join(life.history[-40:])
            error.add_note(f"seed {seed} on {store}, after {len(life.history)} steps, of which the last were\n  {told}")
            raise
        record_property("refused", dict(life.refused))
