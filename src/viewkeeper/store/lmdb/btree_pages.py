"""Where to cut a table: the keys that its tree has in its branches are rows' keys in order, at like distances.

A tree of six million rows has 1,500 branches one level above its leaves: read from the file they say in a millisecond
where the quarters of the table are, nearly. A walk over all its keys says it exactly, and takes 0.1 s a
million rows in which no task can begin yet.

The pages are those of LMDB 0.9's data file: a page begins with its number and a list of its nodes; a node of a branch
has a child's number and the least key below it. A read transaction's pages are not written again before its end.
Whatever is not as expected here (a small tree, another layout) is walked.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TREE = struct.Struct("=IHHQQQQQ")
"""A sub-database, as the main one has it: …, its depth, …, its root."""
_PAGE = struct.Struct("=QHHHH")
"""A page's number, …, what it is, and where its list of nodes ends."""
_NODE = struct.Struct("=HHHH")
"""A child's number in three pieces, the lowest first, and the length of the key that follows."""
_BRANCH_FLAG = 0x01
_BRANCHES_PER_RANGE = 16
"""Branches for each part: a part is that many, and ends where one of them does."""


def split_points(txn: Any, db: Any, name: bytes, data: Path, range_count: int) -> list[bytes]:
    """Keys that cut a sub-database into `parts` ranges of nearly equal length, in a read transaction."""
    keys = _sample_branch_keys(txn, name, data, txn.stat(db)["psize"], _BRANCHES_PER_RANGE * range_count)
    if not keys:
        return _split_by_walk(txn, db, range_count)
    return [keys[len(keys) * part // range_count] for part in range(1, range_count)]


def _split_by_walk(txn: Any, db: Any, range_count: int) -> list[bytes]:
    """The same exactly: one walk over the keys."""
    step = txn.stat(db)["entries"] // range_count
    if not step:
        return []
    cursor = txn.cursor(db=db)
    cursor.first()
    keys = itertools.islice(cursor.iternext(values=False), step, None, step)
    return list(itertools.islice(keys, range_count - 1))


def _sample_branch_keys(txn: Any, name: bytes, data: Path, size: int, min_keys: int) -> list[bytes]:
    """At least so many keys of branches of one level, in order; none if there are fewer."""
    tree = txn.get(name)
    if tree is None or len(tree) != _TREE.size:
        return []
    *_, root = fields = _TREE.unpack(tree)
    level = [(root, b"")]
    with data.open("rb", buffering=0) as file:
        for _ in range(fields[2] - 1):  # the last level is that of the leaves
            level = [child for page, key in level for child in _branch_children(file.fileno(), page, key, size)]
            if len(level) >= min_keys:
                return [key for _, key in level]
    return []


def _branch_children(file: int, number: int, least_key: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """The children of a branch, each with the least key below it. That of the first is known from above only."""
    page = os.pread(file, size, number * size)
    if len(page) < size:
        return
    own, _, kind, end, _ = _PAGE.unpack_from(page)
    if own != number or not kind & _BRANCH_FLAG:
        return
    for place, (start,) in enumerate(struct.iter_unpack("=H", page[_PAGE.size : end])):
        low, middle, high, length = _NODE.unpack_from(page, start)
        key = start + _NODE.size
        yield low | middle << 16 | high << 32, page[key : key + length] if place else least_key
