"""The command line without Spark: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from viewkeeper import __version__
from viewkeeper.cli import main
from viewkeeper.cli.app import app
from viewkeeper.cli.shop import Shop

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def vk(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `vk` on a database of the test's own: exit code, output, errors."""
    monkeypatch.setenv("VIEWKEEPER_DB", f"lmdb:{tmp_path / 'shop'}")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        printed = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, printed.out, printed.err

    return run


ITEMS = "CREATE TABLE items (shop STRING, id BIGINT, price DECIMAL(6,2), day DATE, PRIMARY KEY (shop, id))"


@pytest.fixture
def shop(vk: Run, tmp_path: Path) -> None:
    import viewkeeper

    assert vk("sql", ITEMS)[0] == 0
    with viewkeeper.open(f"lmdb:{tmp_path / 'shop'}") as db:
        db.put("items", [{"shop": s, "id": i, "price": "1.50", "day": "2024-02-29"} for s in "ab" for i in (7, 10)])


def test_version(vk: Run) -> None:
    assert vk("--version") == (0, f"viewkeeper {__version__}\n", "")


def test_every_help_ends_with_an_example(vk: Run) -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__
        assert f"Example: vk {name}" in vk(name, "--help")[1]


def test_sql_creates_and_shows(vk: Run, tmp_path: Path) -> None:
    assert vk("sql", ITEMS) == (0, "", "")
    assert vk("sql", "SHOW TABLES") == (0, "items\n", "")
    assert vk("sql", "DESCRIBE items")[1].splitlines()[2].split() == ["id", "bigint", "False", "2"]
    script = tmp_path / "script.sql"
    script.write_text("-- two more\nCREATE TABLE t (a INT PRIMARY KEY); SHOW TABLES;")
    assert vk("sql", "-f", str(script)) == (0, "items\nt\n", "")


@pytest.mark.usefixtures("shop")
def test_get_reads_a_key_by_its_types(vk: Run) -> None:
    code, out, _ = vk("get", "items", "a", "7")
    assert (code, json.loads(out)) == (0, {"shop": "a", "id": 7, "price": "1.50", "day": "2024-02-29"})
    assert vk("get", "items", "a", "8") == (1, "", "items has no row with key a 8.\n")


@pytest.mark.usefixtures("shop")
def test_scan_prints_a_json_object_a_line_in_key_order(vk: Run) -> None:
    lines = [json.loads(line) for line in vk("scan", "items")[1].splitlines()]
    assert [(r["shop"], r["id"]) for r in lines] == [("a", 7), ("a", 10), ("b", 7), ("b", 10)]
    lines = [json.loads(line) for line in vk("scan", "items", "a")[1].splitlines()]
    assert [(r["shop"], r["id"]) for r in lines] == [("a", 7), ("a", 10)]
    lines = [json.loads(line) for line in vk("scan", "items", "b", "--limit", "1")[1].splitlines()]
    assert [(r["shop"], r["id"]) for r in lines] == [("b", 7)]


@pytest.mark.usefixtures("shop")
def test_status_and_refresh_are_for_people(vk: Run) -> None:
    code, out, _ = vk("status")
    assert code == 0
    assert ["items", "4"] in [line.split() for line in out.splitlines()]
    assert "views: none" in out
    assert vk("refresh")[1].splitlines()[1] == "changes: 0"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (["get", "nothing", "1"], "VK101", "'nothing'"),
        (["get", "items", "a"], "VK201", "2 column(s)"),
        (["get", "items", "a", "seven"], "VK201", "'seven'"),
        (["sql", "CREATE TABLE items (a INT PRIMARY KEY)"], "VK102", "'items'"),
        (["sql", "CREATE TABLE x (a INT)"], "VK301", "PRIMARY KEY"),
        (["sql", "CREATE TABLE x (a BLOB PRIMARY KEY)"], "VK302", "BLOB"),
        (["explain", "items"], "VK101", "'items'"),
        (["scan", "items", "--db", "nowhere:x"], "VK201", "nowhere"),
    ],
)
def test_an_error_is_one_line_with_code_and_hint(vk: Run, arguments: list[str], code: str, names: str) -> None:
    exit_code, out, err = vk(*arguments)
    assert (exit_code, out) == (1, "")
    assert err.startswith(f"error[{code}")
    assert err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["get", "items"],
        ["sql"],
        ["sql", "SHOW TABLES", "-f", "x"],
        ["sql", "-f", "no-such-file.sql"],
        ["scan", "items", "--limit", "-1"],
        ["scan", "items", "--limit", "x"],
        ["refresh", "--lane", "fast"],
        ["demo", "--colour"],
    ],
)
def test_a_wrong_call_is_one_line_and_code_2(vk: Run, tmp_path: Path, arguments: list[str]) -> None:
    exit_code, out, err = vk(*arguments)
    assert (exit_code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--help" in err
    assert not (tmp_path / "shop").exists()


def test_the_demo_shop_tells_each_change_it_makes() -> None:
    class Recorder:
        calls: list[str]

        def __init__(self) -> None:
            self.calls = []

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: self.calls.append(name)

    db = Recorder()
    shop = Shop(db)
    shop.open()
    assert db.calls == ["sql"] * 3 + ["put"] * 3
    told = [shop.change() for _ in range(200)]
    assert db.calls[6:].count("delete") == sum("cancelled" in line for line in told) > 0
    assert db.calls[6:].count("update") == sum("price of" in line for line in told) > 0
    assert len(db.calls) == 206
