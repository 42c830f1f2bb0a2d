"""The programs under tools/ are not modules, so neither mypy nor a search for imports finds what they use."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module, util
from pathlib import Path

import pytest

pytest.importorskip("thriftpy2")

TOOLS = sorted(path for path in (Path(__file__).parents[2] / "tools").iterdir() if path.is_file())
_IMPORT = re.compile(r"from (viewkeeper[\w.]*) import ([\w, ]+)")


def test_what_the_tools_import_is_there() -> None:
    found = [(tool.name, *line) for tool in TOOLS for line in _IMPORT.findall(tool.read_text("utf-8"))]
    assert {tool for tool, _, _ in found} >= {"hbase-cluster", "push-jar", "reference.py"}
    missing = [
        f"{tool}: {module}.{name}"
        for tool, module, names in found
        for name in re.findall(r"\w+", names.partition(" as ")[0])
        if not hasattr(import_module(module), name) and util.find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_a_package_of_commands_can_be_imported_first() -> None:
    """`vk` loads the package by its entry point, and the package imports from `viewkeeper.cli`."""
    done = subprocess.run([sys.executable, "-c", "import viewkeeper_hbase.cli"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
