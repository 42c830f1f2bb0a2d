"""The code in README.md runs, in order, and gives what its comments say."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
RESULT = re.compile(r"^(\s*)(\S.*?)  # → (.*)$", re.MULTILINE)


def same(got: Any, said: Any) -> None:
    assert got == said


@pytest.mark.usefixtures("spark")
def test_readme_code_runs_and_gives_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        checked, results = RESULT.subn(r"\1same(\2, \3)", block)
        assert results == 1
        exec(compile(checked, "README.md", "exec"), {"same": same, "Decimal": Decimal})


def test_readme_links_exist() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_readme_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"^    (?:\w+=\w+ )?make ([a-z]+)", text, re.MULTILINE))
        assert named, page
        assert named <= targets, page
