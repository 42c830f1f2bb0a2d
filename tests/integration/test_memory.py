"""Memory is bounded: the anonymous memory of the whole process tree, watched from outside, under a budget.

Each program runs by itself, as a user's would; what it leaves is compared with Spark's recompute. Python, its libraries
and a JVM that plans take some of it before the first row is read: that is why a bar is more than its budget.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.anonymous import watched
from tests.integration import fanning_out

import viewkeeper as vk

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

HERE = Path(__file__).parent


def run(program: str, *arguments: str, most: int, **environment: str) -> str:
    peak = watched([sys.executable, str(HERE / program), *arguments], most, environment)
    print(f"{program} {' '.join(arguments)}: {peak.together} MB, {peak.java} MB of them Java's")
    return peak.output


@pytest.mark.slow
def test_a_join_that_multiplies_rows_is_loaded_and_maintained_in_little_memory(
    make_db: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    """Five million joined rows at once take half a gigabyte more than here, where libraries are most of it."""
    with make_db("fan", spark=spark, durability="none") as db:
        fanning_out.make(db)
        db.sql(fanning_out.VIEW)
    url = f"lmdb:{tmp_path / 'fan'}"
    said = run("fanning_out.py", url, "--rows", "17000", "--keys", "1000", "--memory", "128MB", most=350)
    assert [line.split()[0] for line in said.splitlines()] == ["rebuild", "driver"]
    with vk.open(url, spark=spark) as db:
        assert db.audit().differences == 0


@pytest.mark.deep
@pytest.mark.timeout(3_600)
def test_two_hundred_million_joined_rows_under_a_gigabyte(tmp_path: Path, spark: Any) -> None:
    """CREATE with its JVM, and a batch that fans out."""
    url = f"lmdb:{tmp_path / 'fan'}"
    run("fanning_out.py", url, "--create", "--rows", "100000", "--keys", "2200", "--memory", "1GB", most=1_700)
    with vk.open(url, mode="r", spark=spark) as db:
        # Too many rows for Spark to join here: what a key of b joins is what its key has in a and in c.
        a, b, c = (db.read(t) for t in "abc")
        counted = [t.group_by(f"{n}_k").aggregate([([], "count_all")]) for n, t in zip("abc", (a, b, c), strict=True)]
        by_key = [dict(zip(*(t[c].to_pylist() for c in t.column_names), strict=True)) for t in counted]
        wanted = sum(x * by_key[1].get(k, 0) * by_key[2].get(k, 0) for k, x in by_key[0].items())
        assert sum(db.read("fanned")["n"].to_pylist()) == wanted > 200_000_000
