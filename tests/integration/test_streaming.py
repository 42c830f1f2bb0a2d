"""Structured Streaming from end to end, killed in the middle and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import viewkeeper

pytestmark = pytest.mark.deep

PROGRAM = Path(__file__).with_name("streaming_shop.py")


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)  # JVMs start slowly on a busy machine
def test_streams_killed_and_restarted_add_up(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'db'}"
    log = tmp_path / "log"

    def start(batches: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), url, str(tmp_path / "work"), str(batches)]
        with log.open("a") as errors:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=os.environ.copy()
            )

    first = start(10_000)
    try:
        reached = next((line for line in lines(first) if line == "batch 3"), None)
        assert reached, log.read_text()[-2000:]
        time.sleep(0.3)  # into the next batch, whatever its stage
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert first.stdout is not None
        first.stdout.close()
    with viewkeeper.open(url, mode="r") as db:
        before = db.read("numbers").num_rows
    assert before > 0
    assert before % 500 == 0  # a batch is written whole or not at all

    second = start(7)
    try:
        told = list(lines(second))
        assert second.wait(timeout=120) == 0, log.read_text()[-2000:]
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
        assert second.stdout is not None
        second.stdout.close()
    added = [tuple(row) for row in json.loads(told[-1].removeprefix("added "))]
    with viewkeeper.open(url, mode="r") as db:
        ids = db.read("numbers")["id"].to_pylist()
        view = sorted(tuple(row.values()) for row in db.read("by_group").to_pylist())
    assert ids == list(range(len(ids)))  # nothing lost, nothing twice
    assert len(ids) > before
    recomputed = [(g, len(ids) // 10, 3 * sum(range(g, len(ids), 10))) for g in range(10)]
    assert view == recomputed
    assert added == recomputed
