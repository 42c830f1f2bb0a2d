"""The interactive shell, driven through a pseudo-terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from viewkeeper.cli.shell import complete_statements


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """`vk sql` on a terminal of its own, past its greeting."""
    env = {
        **os.environ,
        "VIEWKEEPER_DB": f"lmdb:{tmp_path / 'shop'}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "NO_COLOR": "1",
    }
    child = pexpect.spawn(
        sys.executable, ["-m", "viewkeeper", "sql"], env=env, timeout=60, encoding="utf-8", dimensions=(40, 120)
    )
    child.expect(r"\\h for help")
    child.expect("vk>")
    yield child
    child.close(force=True)


def test_statements_over_many_lines_and_commands(terminal: Any) -> None:
    terminal.sendline("CREATE TABLE items (id INT,")
    terminal.expect(r"\.\.>")
    terminal.sendline("name STRING, PRIMARY KEY (id));")
    terminal.expect("created")
    terminal.sendline("INSERT INTO items VALUES (1, 'a;b'); INSERT INTO items VALUES (2, 'c');")
    terminal.expect("1 inserted")
    terminal.expect("1 inserted")
    terminal.sendline(r"\d")
    terminal.expect(r"tables +items")
    terminal.expect(r"views +\(none\)")
    terminal.sendline(r"\d items")
    terminal.expect(r"name +string +True")
    terminal.sendline(r"\q")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_an_error_is_one_line_and_the_shell_goes_on(terminal: Any) -> None:
    terminal.sendline("DROP TABLE nothing;")
    terminal.expect(r"error\[VK101\]")
    terminal.sendline(r"\nonsense")
    terminal.expect(r"error\[VK301\]")
    terminal.sendline("help")
    terminal.expect("this list")
    terminal.sendline("SELECT 'half")
    terminal.expect("\\.\\.>.*\x1b\\[\\?25h")
    terminal.sendcontrol("c")  # thrown away
    terminal.expect("vk>")
    terminal.sendline("SHOW TABLES;")
    terminal.expect(r"\(none\)")
    terminal.expect("vk>.*\x1b\\[\\?25h")  # the prompt is drawn, and waits
    terminal.sendcontrol("d")
    terminal.expect(pexpect.EOF)


def test_names_are_completed_and_history_is_kept(terminal: Any, tmp_path: Path) -> None:
    terminal.sendline("CREATE TABLE warehouses (id INT PRIMARY KEY);")
    terminal.expect("created")
    terminal.expect("vk>.*\x1b\\[\\?25h")
    terminal.send("DESCRIBE wareh\t")
    terminal.expect("ouses")
    terminal.sendline(";")
    terminal.expect(r"id +int +False")
    terminal.sendline(r"\q")
    terminal.expect(pexpect.EOF)
    assert "CREATE TABLE warehouses" in (tmp_path / "state" / "viewkeeper" / "history").read_text()


@pytest.mark.parametrize("word", ["exit", "quit;", r"\q"])
def test_the_ways_out(terminal: Any, word: str) -> None:
    terminal.sendline(word)
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SHOW TABLES", None),
        ("SHOW TABLES;", ["SHOW TABLES"]),
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        ("INSERT INTO t VALUES ('a;", None),
        ("/* not yet;", None),
        ("INSERT INTO t VALUES ( -- 1, 2;", None),
        ("SHOW TABLES; -- and no more", ["SHOW TABLES"]),
        ("SELECT 'it''s;", None),
        (";", []),
    ],
)
def test_a_semicolon_ends_a_statement_but_not_inside_a_quote(text: str, statements: list[str] | None) -> None:
    assert complete_statements(text) == statements
