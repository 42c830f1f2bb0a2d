"""State that contradicts itself is an error by name, and Python's -O changes nothing about that: src has no asserts."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import DEAR, TOTALS

import viewkeeper as vk
from viewkeeper.cli import main
from viewkeeper.errors import Contradiction, EvaluationError, Suspended

ROOT = Path(__file__).parents[2]
TOO_LONG = {"item_id": 1, "category": "k" * 70_000, "price": 9}
"""Of a category that no key of a view holds."""


def tampered(url: str) -> Any:
    """A database whose view's groups are forgotten, though its rows and their image are there."""
    db = planned.tables(vk.open(url))
    db.put("items", [{"item_id": n, "category": "a", "price": n} for n in range(9)])
    db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
    state = db._acquire_maintainer().publisher.state
    groups = {slot for slot in state.manifest.runs if slot.startswith("aggregate")}
    state.adopt(state.manifest.restricted_to(frozenset(state.manifest.runs) - groups))
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
                Contradiction, match=r"VK504.*contradicts itself \(totals: A group of .* fewer than no rows"
            ) as e:
                db.refresh(suspend=False)
            assert "vk audit --repair" in e.value.hint
        assert db.status().epoch == epoch
        [finding] = [f for f in db.doctor().findings if "contradicted itself" in f.message]
        assert not finding.ok
        db._acquire_maintainer().state_repair.rebuild()
        db.refresh()
        assert db.read("totals").to_pylist() == [{"category": "a", "n": 8, "total": 33}]
        assert all("contradicted itself" not in f.message for f in db.doctor().findings)


def test_wrong_state_of_one_view_stops_that_view_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, and under a statement that has nothing to do with it."""
    planned.install(monkeypatch.setattr)
    with tampered(f"lmdb:{tmp_path / 'db'}") as db:
        db.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        assert db.read("dear").num_rows == 5
        totals, dear = (next(v for v in db.status().views if v.name == name) for name in ("totals", "dear"))
        assert "totals: A group of" in str(totals.suspended)
        assert dear.suspended is None
        assert any("contradicted itself" in f.message for f in db.doctor().findings)
        db.put("items", [{"item_id": 20, "category": "a", "price": 9}])
        with db.maintain():
            wait_until(lambda: db.read("dear").num_rows == 6)
        db.sql("ALTER MATERIALIZED VIEW totals RESUME")
        assert db.read("totals").to_pylist() == [{"category": "a", "n": 9, "total": 42}]


def test_a_broken_view_stops_no_create_and_no_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        planned.tables(db, "totals", "bosses")
        db.sql("ALTER MATERIALIZED VIEW bosses SUSPEND")
        db.put("kinds", [{"category": "a", "boss": "b"}])
        db.put("items", [TOO_LONG, {"item_id": 2, "category": "a", "price": 5}])
        with pytest.raises(EvaluationError, match="totals"):  # who wants all or nothing is told, and nobody is stopped
            db.refresh(suspend=False)
        assert all(v.suspended is None for v in db.status().views if v.name == "totals")
        db.sql("ALTER MATERIALIZED VIEW bosses RESUME")
        assert db.read("bosses").to_pylist() == [{"boss": "b", "n": 1, "top": 5}]
        assert "totals" in str(next(v for v in db.status().views if v.name == "totals").suspended)
        with pytest.raises(EvaluationError, match="totals"):  # its own row still breaks it
            db.sql("ALTER MATERIALIZED VIEW totals RESUME")
        db.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        assert db.read("dear").num_rows == 2
        db.delete("items", 1)
        db.sql("ALTER MATERIALIZED VIEW totals RESUME")
        assert db.read("totals").to_pylist() == [{"category": "a", "n": 1, "total": 5}]


def test_a_refresh_by_hand_goes_on_without_a_broken_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        planned.tables(db, "totals", "dear")
        db.put("items", [TOO_LONG])
        with pytest.raises(EvaluationError, match=r"totals.*category = 'kkk"):
            db.refresh(suspend=False)
        assert db.read("dear").num_rows == 0
        told = db.refresh().suspended
        assert list(told) == ["totals"]
        assert "category = 'kkk" in told["totals"]
        assert db.read("dear").num_rows == 1
        db.put("items", [{"item_id": 2, "category": "a", "price": 5}])
        assert db.refresh().suspended == {}, "it is told once"
        assert db.read("dear").num_rows == 2


def test_a_read_that_must_be_new_is_stopped_by_no_other_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who maintains refreshes to answer it, with all views."""
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        planned.tables(db, "totals", "dear")
        db.put("items", [TOO_LONG])
        assert db.read("dear", vk.LATEST).num_rows == 1
        with pytest.raises(Suspended, match=r"totals.*category = 'kkk"):
            db.read("totals", vk.LATEST)


def test_vk_refresh_tells_what_it_suspended_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def ran(*options: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(["refresh", "--db", url, *options])
        return end.value.code, capfd.readouterr().out

    planned.install(monkeypatch.setattr)
    url = f"lmdb:{tmp_path / 'db'}"
    with vk.open(url) as db:
        planned.tables(db, "totals", "dear")
        db.put("items", [TOO_LONG])
    assert ran("--no-suspend") == (1, "")
    code, said = ran("-o", "json")
    report = json.loads(said)
    assert code == 1
    assert report["views"] == {"dear": 1}
    assert "category = 'kkk" in report["suspended"]["totals"]
    assert ran()[0] == 0, "it is told once; doctor goes on telling it"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


PROGRAM = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from tests.contract import planned
    planned.install()
    from tests.contract.test_contradictions import tampered
    with tampered("lmdb:" + sys.argv[1]) as db:
        try:
            db.refresh(suspend=False)
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
