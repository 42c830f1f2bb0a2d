"""The demo runs, its views are equal to their recomputation, and it ends with what to try next."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import viewkeeper
from viewkeeper.cli.demo import tpch as demo_tpch
from viewkeeper.cli.demo.shop import demo
from viewkeeper.workloads.shop import VIEWS


def run(*, terminal: bool) -> str:
    screen = io.StringIO()
    assert demo(Console(file=screen, force_terminal=terminal, width=120), seconds=1.5)
    return screen.getvalue()


@pytest.mark.usefixtures("spark")
def test_demo_in_plain_lines() -> None:
    told = run(terminal=False)
    assert re.search(r"batch \d+: \d changes? → \d+ view rows?, driver lane", told)
    for view in VIEWS:
        assert re.search(rf"✓ {view}: \d+ rows, equal", told)
    assert "Try next:" in told
    assert "\x1b" not in told


@pytest.mark.usefixtures("spark")
def test_demo_on_a_terminal_shows_the_views_live() -> None:
    told = run(terminal=True)
    for title in ("changes", "by_category", "order_lines", "ratings"):
        assert title in told
    assert "✓" in told
    assert "✗" not in told


@pytest.mark.usefixtures("spark")
def test_the_check_sees_a_view_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEWS, "ratings", VIEWS["ratings"].replace("min(", "max("))
    screen = io.StringIO()
    database = viewkeeper.Database
    create = database.sql

    def sql(self: viewkeeper.Database, text: str) -> object:
        return create(self, text.replace("max(r.stars)", "min(r.stars)"))

    monkeypatch.setattr(database, "sql", sql)
    assert not demo(Console(file=screen), seconds=0)
    assert "✗ ratings" in screen.getvalue()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("terminal", [False, True])
def test_the_tpch_demo_streams_and_checks(tpch: Path, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=150)
    assert demo_tpch.demo(console, tpch, seconds=1.5, scale=0.01)
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    for number in demo_tpch.NUMBERS:
        assert re.search(rf"✓ q{number} [a-z ]+: \d+ rows, equal", told)
    assert re.search(r"lag \d+ ms", told)
    assert "Try next:" in told
    if not terminal:
        assert re.search(r"batch 1: \d+ changes → rows changed: q1 \d", told)
        assert "\x1b" not in screen.getvalue()


@pytest.fixture(scope="module")
def tpch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TPC-H's files, made once."""
    return tmp_path_factory.mktemp("tpch")
