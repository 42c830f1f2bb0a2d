"""The docs are true: their code runs and gives what they say, their links lead somewhere, nothing is left out."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, pages, run_page

QUIET = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
EXAMPLES = sorted((ROOT / "examples").glob("0*.py"))


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIEWKEEPER_DB", "lmdb:./shop")
    assert run_page(page, spark=spark) > 0


def test_there_are_six_examples() -> None:
    assert [e.name[:2] for e in EXAMPLES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_an_example_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2 if example.stem == "06_streaming" else 1):  # that one goes on where it was
        runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link or a page outside the navigation fails the build."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=QUIET)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def test_every_command_and_option_is_documented(site: Path) -> None:
    import typer

    from viewkeeper.cli.app import app

    page = (site / "reference" / "cli" / "index.html").read_text("utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) > 10
    for name, command in commands.items():
        assert f"vk {name}" in page
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert f"<code>{option}</code>" in page, f"vk {name} {option}"


def test_every_public_name_is_documented(site: Path) -> None:
    import viewkeeper

    page = (site / "reference" / "api" / "index.html").read_text("utf-8")
    for name in viewkeeper.__all__:
        assert name in page or name.startswith("__")
    for name, method in vars(viewkeeper.Database).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert f"Database.{name}" in page
            assert method.__doc__, name


def test_what_sql_is_supported_is_documented(site: Path) -> None:
    from viewkeeper import errors
    from viewkeeper.expressions import SUPPORTED

    page = (site / "sql" / "index.html").read_text("utf-8")
    assert all(f"<td>{op}</td>" in page for op, _, _ in SUPPORTED)
    page = (site / "reference" / "errors" / "index.html").read_text("utf-8")
    codes = {v.code for v in vars(errors).values() if inspect.isclass(v) and hasattr(v, "code")} - {"VK000"}
    assert codes
    assert all(code in page for code in codes)


def test_the_committed_reference_of_sql_is_that_of_the_code() -> None:
    reference = runpy.run_path(str(ROOT / "tools" / "reference.py"))
    made = reference["_MADE"] + "\n".join(reference["sql"]()).rstrip() + "\n"
    assert (ROOT / "docs" / "sql.md").read_text("utf-8") == made, "run python tools/reference.py"


def test_links_of_the_pages_outside_the_site_exist() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_pictures_are_pictures() -> None:
    found = sorted((ROOT / "docs" / "images").iterdir())
    assert [picture.name for picture in found] == ["demo.png", "overview.png", "q9.svg", "view.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in found if picture.suffix == ".png")
    drawn = found[2].read_text(encoding="utf-8")
    assert all(f"Δ {table}" in drawn for table in ("lineitem", "orders", "part", "partsupp", "supplier", "nation"))


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"^ *(?:\w+=\w+ )?make ([a-z]+)", text, re.MULTILINE))
        assert named, page
        assert named <= targets, page


def test_the_modules_that_the_architecture_names_are_there() -> None:
    source = ROOT / "src" / "viewkeeper"
    names = {file.name for file in source.rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert len(named) > 50
    missing = [n for n in named if not (n in names or (source / n).exists() or (source.parent / n).exists())]
    assert missing == []
