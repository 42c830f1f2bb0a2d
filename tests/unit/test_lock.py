"""The lock file: every dependency as pyproject.toml pins it, every file by its hash, and no place to get it from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_lock_has_every_dependency_with_its_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    for requirement in wanted:
        name, exact = re.match(r"([A-Za-z0-9_-]+)(?:\[.*\])?(?:==([^;\s]+))?", requirement).groups()  # type: ignore[union-attr]
        if name != "viewkeeper":
            assert name in locked, f"{name} is not locked: run tools/lock"
            assert exact in (None, locked[name]), f"{name} is locked at {locked[name]}: run tools/lock"
    for entry in re.split(r"\n(?=\S)", text.partition("\n")[2].strip()):
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text
