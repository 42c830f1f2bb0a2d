"""Split points of a table: the keys in the branch pages of its tree are row keys in order, at similar distances.

A tree of six million rows has 1,500 branches one level above its leaves: reading them from the file gives approximate
quantiles of the table in a millisecond. A walk over all keys gives exact quantiles, but takes 0.1 s per million rows,
in which no task can begin.

The pages are those of LMDB 0.9's data file: a page begins with its number and a list of its nodes; a node of a branch
has a child's page number and the least key below it. Pages of a read transaction are not overwritten before its end. If
the tree is not as expected here (too small, or another layout), the keys are walked.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TREE = struct.Struct("=IHHQQQQQ")
"""A sub-database's record in the main database: …, its depth, …, its root."""
_PAGE = struct.Struct("=QHHHH")
"""A page's number, …, its flags, and the end of its list of nodes."""
_NODE = struct.Struct("=HHHH")
"""A child's page number in three pieces, the lowest first, and the length of the key that follows."""
_BRANCH_FLAG = 0x01
_BRANCHES_PER_RANGE = 16
"""Number of branches for each range; a range ends at the end of a branch."""


def split_points(txn: Any, db: Any, name: bytes, data: Path, range_count: int) -> list[bytes]:
    """Return keys that split a sub-database into `range_count` ranges of similar length, in a read transaction."""
    keys = _sample_branch_keys(txn, name, data, txn.stat(db)["psize"], _BRANCHES_PER_RANGE * range_count)
    if not keys:
        return _split_by_walk(txn, db, range_count)
    return [keys[len(keys) * number // range_count] for number in range(1, range_count)]


def _split_by_walk(txn: Any, db: Any, range_count: int) -> list[bytes]:
    """Return exact split points by a walk over the keys."""
    step = txn.stat(db)["entries"] // range_count
    if not step:
        return []
    cursor = txn.cursor(db=db)
    cursor.first()
    keys = itertools.islice(cursor.iternext(values=False), step, None, step)
    return list(itertools.islice(keys, range_count - 1))


def _sample_branch_keys(txn: Any, name: bytes, data: Path, size: int, min_keys: int) -> list[bytes]:
    """Return at least `min_keys` keys from the branches of one level, in order; none if there are fewer."""
    tree = txn.get(name)
    if tree is None or len(tree) != _TREE.size:
        return []
    *_, root = fields = _TREE.unpack(tree)
    level = [(root, b"")]
    with data.open("rb", buffering=0) as file:
        for _ in range(fields[2] - 1):  # the last level has the leaves
            level = [child for page, key in level for child in _branch_children(file.fileno(), page, key, size)]
            if len(level) >= min_keys:
                return [key for _, key in level]
    return []


def _branch_children(file: int, number: int, least_key: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the children of a branch, each with the least key below it. The first child's key is known only from its
    parent."""
    page = os.pread(file, size, number * size)
    if len(page) < size:
        return
    page_number, _, flags, end, _ = _PAGE.unpack_from(page)
    if page_number != number or not flags & _BRANCH_FLAG:
        return
    for index, (start,) in enumerate(struct.iter_unpack("=H", page[_PAGE.size : end])):
        low, middle, high, length = _NODE.unpack_from(page, start)
        key = start + _NODE.size
        yield low | middle << 16 | high << 32, page[key : key + length] if index else least_key
