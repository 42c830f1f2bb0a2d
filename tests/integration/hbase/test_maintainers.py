"""Maintainers that die, sleep, and wake up again: the batch that was claimed is published once, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.hbase.shop import expected, totals

from viewkeeper.errors import MaintainerBusy
from viewkeeper.maintain import registry
from viewkeeper.store.redo import claim
from viewkeeper_hbase import commit_steps as commits
from viewkeeper_hbase.metadata import PublishedBatch

LEASE = 3
"""Seconds: a holder on a busy machine renews it late, and must not lose it for that."""

pytestmark = [pytest.mark.deep, pytest.mark.slow]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each handle stands for a process: they do not find each other's maintainer."""
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry, "_registry_key", lambda store: object())


def test_a_successor_finishes_the_claimed_batch_and_the_old_maintainer_changes_nothing(
    shop: Any, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("items", [{"id": n, "category": "new", "price": 5} for n in range(5)])
    held: list[Any] = []
    publish = claim.publish_batch
    monkeypatch.setattr(claim, "publish_batch", lambda records, redo: held.append((records, redo)))
    shop.refresh()  # it slept before step 4
    monkeypatch.setattr(claim, "publish_batch", publish)
    shop._maintainer.publisher.lease._done.set()  # nor does it renew its lease
    time.sleep(LEASE + 0.2)
    other = open_db()
    other.put("items", {"id": 5, "category": "newer", "price": 1})
    other.refresh()
    assert totals(other) == expected(other)
    epoch = other.status().epoch
    publish(*held[0])  # it wakes up
    for table in held[0][1].tables:
        commits.write_cells(held[0][0].client, table, held[0][1].number)
    assert (other.status().epoch, totals(other)) == (epoch, expected(other))
    with pytest.raises(MaintainerBusy):
        shop._store.commit(PublishedBatch.from_json(held[0][1].published).batch, [])


def test_two_maintainers_exclude_each_other(shop: Any, open_db: Callable[..., Any]) -> None:
    with pytest.raises(MaintainerBusy, match="process"):
        open_db().refresh()
    shop.close()
    assert open_db().refresh().epoch == 1


MAINTAINER = """
import os, signal, sys
import viewkeeper as vk
from viewkeeper_hbase import commit_steps
from viewkeeper.store.redo import claim
url, state, at = sys.argv[1:4]
def die(*args): os.kill(os.getpid(), signal.SIGKILL)
db = vk.open(url, state=state, lease=3)
if at == "claim": commit_steps.finish_claimed_batch = die
if at == "cells": claim.publish_batch = die
if at == "redo": claim.Claim = die
db.refresh()
"""


@pytest.mark.parametrize("at", ["redo", "claim", "cells"])
def test_a_maintainer_killed_in_a_commit_leaves_a_right_database(
    shop: Any, open_db: Callable[..., Any], tmp_path: Path, at: str
) -> None:
    url = shop._store.url
    shop.close()
    writer = open_db()
    writer.put("items", [{"id": n, "category": "k", "price": 5} for n in range(40)])
    run = [sys.executable, "-c", MAINTAINER, url, str(tmp_path / "state"), at]
    assert subprocess.run(run, capture_output=True, timeout=120, check=False).returncode == -9
    time.sleep(LEASE + 0.2)
    writer.put("items", {"id": 1000, "category": "after", "price": 1})
    writer.refresh()
    assert totals(writer) == expected(writer)
    assert writer.refresh().lane == "none"
