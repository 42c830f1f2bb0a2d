"""tools/apt: what the other tools install waits for its turn, and fails for any other reason at once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "apt"
HELD = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"
APT = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
[ "$(wc -l < "$CALLS")" -gt "$FAILS" ] && exit 0
echo "$SAYS" >&2
exit 100
"""
"""It fails so often, and says why."""


def asked(place: Path, *words: str, fails: int, says: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    (place / "apt-get").write_text(APT)
    (place / "apt-get").chmod(0o755)
    calls = place / "calls"
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    where = os.environ | {"PATH": path, "CALLS": str(calls), "FAILS": str(fails), "SAYS": says, "VK_APT_PAUSE": "0"}
    ended = subprocess.run([TOOL, *words], env=where, capture_output=True, text=True, timeout=60)
    return ended, calls.read_text().splitlines()


@pytest.mark.parametrize("words", [("update",), ("install", "chromium")])
def test_a_lock_that_another_holds_is_waited_for_and_told_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended, calls = asked(tmp_path, *words, fails=3, says=f"{HELD}\nE: Unable to lock directory /var/lib/apt/lists/")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == f"viewkeeper: waiting for another program's apt: {HELD}\n"
    assert len(calls) == 4
    assert set(calls) == {"-qq update" if words == ("update",) else "-qq install -y --no-install-recommends chromium"}


def test_another_failure_is_told_at_once(tmp_path: Path) -> None:
    ended, calls = asked(tmp_path, "install", "nothing", fails=3, says="E: Unable to locate package nothing")
    assert (ended.returncode, ended.stderr) == (100, "E: Unable to locate package nothing\n")
    assert len(calls) == 1


def test_a_lock_that_is_never_let_go_ends_in_its_error(tmp_path: Path) -> None:
    ended, calls = asked(tmp_path, "update", fails=1000, says=HELD)
    assert ended.returncode == 100
    assert ended.stderr.endswith(f"{HELD}\n")
    assert len(calls) == 120
