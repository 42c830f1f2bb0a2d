"""How far back the HBase store looks for what was written, over a small HBase without a JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract.conftest import ITEMS, STORES, ids, items, put

from viewkeeper.store.base import Store
from viewkeeper.store.hbase import windows

NAMES = [column.name for column in ITEMS.columns]


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    opened = STORES["atomic rows only"](tmp_path, request)(overlap=0.2)
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    yield opened
    opened.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time after which each look asked for cells."""
    original = windows.look
    times: list[int] = []

    def look(client: Any, layout: Any, after: int, upto: int, **options: Any) -> windows.Look:
        times.append(after)
        return original(client, layout, after, upto, **options)

    monkeypatch.setattr(windows, "look", look)
    return times


def test_what_was_loaded_last_is_not_read_again_once_the_overlap_is_over(store: Store, looked: list[int]) -> None:
    cut = put(store, items(*((n, "a") for n in range(50))))
    assert store.watch(ITEMS, cut)
    time.sleep(0.25)
    assert store.watch(ITEMS, cut)
    upto = put(store, items((3, "b")))
    looked.clear()
    found = store.changed(ITEMS, NAMES, cut, upto)
    assert found.keys == ids(3)
    assert looked == [cut]


def test_while_the_overlap_is_not_over_it_is_read_again(store: Store, looked: list[int]) -> None:
    cut = put(store, items((1, "a")))
    assert store.watch(ITEMS, cut)
    assert store.watch(ITEMS, cut)
    looked.clear()
    assert store.changed(ITEMS, NAMES, cut, store.head()).keys == ids()
    assert looked == [cut - 200]
