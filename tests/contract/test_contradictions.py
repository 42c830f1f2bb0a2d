"""State that contradicts itself is an error by name, and Python's -O changes nothing about that: src has no asserts."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import DEAR, TABLES, TOTALS

import viewkeeper as vk
from viewkeeper.errors import Contradiction

ROOT = Path(__file__).parents[2]


def tampered(url: str) -> Any:
    """A database whose view's groups are forgotten, though its rows and their image are there."""
    db = vk.open(url)
    for statement in TABLES:
        db.sql(statement)
    db.put("items", [{"item_id": n, "category": "a", "price": n} for n in range(9)])
    db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
    state = db._maintain().publisher.state
    groups = {slot for slot in state.manifest.runs if slot.startswith("aggregate")}
    state.adopt(state.manifest.only(frozenset(state.manifest.runs) - groups))
    db.delete("items", 3)
    return db


def test_a_contradiction_is_an_error_by_name_and_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned.install(monkeypatch.setattr)
    with tampered(f"lmdb:{tmp_path / 'db'}") as db:
        epoch = db.status().epoch
        for _ in range(2):
            with pytest.raises(
                Contradiction, match=r"VK504.*contradicts itself \(A group of .* fewer than no rows"
            ) as e:
                db.refresh()
            assert "vk audit --repair" in e.value.hint
        with pytest.raises(Contradiction, match="contradicts itself"):
            db.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        assert db.status().epoch == epoch
        [finding] = [f for f in db.doctor().findings if "contradicted itself" in f.message]
        assert not finding.ok
        db._maintain().mender.rebuild()
        db.refresh()
        assert db.read("totals").to_pylist() == [{"category": "a", "n": 8, "total": 33}]
        assert all("contradicted itself" not in f.message for f in db.doctor().findings)


PROGRAM = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from tests.contract import planned
    planned.install()
    from tests.contract.test_contradictions import tampered
    with tampered("lmdb:" + sys.argv[1]) as db:
        try:
            db.refresh()
            print("refreshed", db.read("totals").to_pylist())
        except Exception as error:
            print(type(error).__name__, error)
        print(db.status().epoch)
"""


def test_optimized_python_finds_the_same(tmp_path: Path) -> None:
    said = []
    for at, options in enumerate(([], ["-O"])):
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(PROGRAM), str(tmp_path / f"db{at}")],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert "Contradiction" in said[0]


def test_nothing_in_src_rests_on_assert() -> None:
    """`assert` goes with -O, and an AssertionError says nothing: raise Contradiction for wrong state, Defect for what
    cannot be, another ViewkeeperError for what a user did."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = isinstance(node, ast.Name) and node.id == "AssertionError"
            if isinstance(node, ast.Assert) or named:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
