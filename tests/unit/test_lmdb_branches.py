"""A table is cut where its tree branches, against a walk over all its keys."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import lmdb
import numpy as np
import pytest

from viewkeeper.store.lmdb import btree_pages


def _made(path: Path, keys: list[bytes], gone: list[bytes]) -> lmdb.Environment:
    env = lmdb.open(str(path), max_dbs=2, map_size=1 << 30, sync=False)
    table = env.open_db(b"t7")
    with env.begin(write=True, db=table) as txn:
        for key in keys:
            txn.put(key, key[:30])
    with env.begin(write=True, db=table) as txn:
        for key in gone:
            txn.delete(key)
    return env


@pytest.mark.parametrize("length", [9, 40, 500])
@pytest.mark.parametrize("order", ["in order", "in any order"])
def test_parts_are_like_those_of_a_walk(tmp_path: Path, length: int, order: str) -> None:
    random = np.random.default_rng(length)
    count = 3_000 if length == 500 else 60_000
    numbers = random.choice(1 << 40, count, replace=False)
    numbers = np.sort(numbers) if order == "in order" else numbers
    keys = [int(n).to_bytes(9, "big").ljust(length, b"x") for n in numbers]
    gone = [keys[at] for at in random.choice(count, count // 5, replace=False)]
    left = sorted(set(keys) - set(gone))
    with _made(tmp_path / "db", keys, gone) as env:
        table = env.open_db(b"t7")
        with env.begin() as txn:
            assert txn.stat(table)["depth"] > 2
            assert btree_pages._sample_branch_keys(txn, b"t7", tmp_path / "db" / "data.mdb", 4096, 32)
            with env.begin(write=True, db=table) as writer:  # what comes later is not of this state
                for key in left[:2_000]:
                    writer.delete(key)
            points = btree_pages.split_points(txn, table, b"t7", tmp_path / "db" / "data.mdb", 4)
            walked = btree_pages._split_by_walk(txn, table, 4)
    places = [bisect_left(left, point) for point in points]
    assert [bisect_left(left, point) for point in walked] == [len(left) // 4 * n for n in (1, 2, 3)]
    assert places == pytest.approx([len(left) // 4 * n for n in (1, 2, 3)], abs=len(left) / 12)


def test_a_small_table_is_walked(tmp_path: Path) -> None:
    with _made(tmp_path / "db", [b"%03d" % n for n in range(200)], []) as env, env.begin() as txn:
        points = btree_pages.split_points(txn, env.open_db(b"t7", txn=txn), b"t7", tmp_path / "db" / "data.mdb", 4)
    assert points == [b"050", b"100", b"150"]


def test_what_is_no_branch_is_walked(tmp_path: Path) -> None:
    """Another file in its place: never a wrong number of rows, whatever the pages say."""
    keys = [b"%06d" % n for n in range(60_000)]
    other = tmp_path / "other"
    other.write_bytes(bytes(4096) * 4_000)
    with _made(tmp_path / "db", keys, []) as env, env.begin() as txn:
        table = env.open_db(b"t7", txn=txn)
        assert btree_pages._sample_branch_keys(txn, b"t7", other, 4096, 32) == []
        assert btree_pages.split_points(txn, table, b"t7", other, 4) == [b"015000", b"030000", b"045000"]
