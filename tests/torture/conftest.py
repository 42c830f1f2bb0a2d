"""What the torture tests share: a template database, copies of it, and the table of what was done to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import clusters

from . import shop
from .harness import Ledger

_VICTIM = Path(__file__).with_name("shop.py")
cluster = clusters.cluster
_LEDGER = pytest.StashKey[Ledger]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEDGER] = Ledger()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker gives its part of the table to the process that prints it."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["faults"] = dict(session.config.stash[_LEDGER].rows)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    rows = node.config.stash[_LEDGER].rows
    for fault, counts in getattr(node, "workeroutput", {}).get("faults", {}).items():
        rows[fault] = [old + new for old, new in zip(rows[fault], counts, strict=True)]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[_LEDGER].rows
    if not rows:
        return
    width = max(map(len, rows))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'fault':{width}}  injected  batches checked  differences")
    for fault, (times, checked, wrong) in sorted(rows.items()):
        terminalreporter.write_line(f"{fault:{width}}  {times:8}  {checked:15}  {wrong:11}")
    totals = [sum(r[i] for r in rows.values()) for i in range(3)]
    terminalreporter.write_line(f"{'all':{width}}  {totals[0]:8}  {totals[1]:15}  {totals[2]:11}")


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[_LEDGER]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    place = tmp_path_factory.mktemp("torture")
    shop.build(f"lmdb:{place / 'db'}", spark)
    return place


@pytest.fixture
def url(template: Path, tmp_path: Path) -> str:
    """A fresh copy of the template."""
    shutil.copytree(template, tmp_path / "copy")
    return f"lmdb:{tmp_path / 'copy' / 'db'}"


@pytest.fixture
def victim() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the shop program on a database, with faults armed; what is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        url: str,
        kind: str = "batches",
        lane: str = "driver",
        first: int = 1,
        steps: int = 4,
        master: Iterable[str] = (),
        **armed: str,
    ) -> subprocess.Popen[str]:
        arguments = [sys.executable, str(_VICTIM), url, kind, lane, str(first), str(steps), *master]
        process = subprocess.Popen(
            arguments, env=os.environ | armed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
