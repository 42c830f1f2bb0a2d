"""Several statements in one text: what is a step, and where errors are said to be."""

from __future__ import annotations

from typing import Any

import pytest

from viewkeeper.errors import BadValue, UnknownName, ViewkeeperError
from viewkeeper.sql.script import count_lines_from_text, split_steps
from viewkeeper.syntax import cursor

TEXT = """-- a script
CREATE TABLE t (k INT PRIMARY KEY);

CREATE MATERIALIZED VIEW a AS SELECT k FROM t;
CREATE MATERIALIZED VIEW b AS
  SELECT k
  FROM t; INSERT INTO t VALUES (:k);
"""


def test_new_views_that_follow_each_other_are_one_step() -> None:
    found = split_steps(TEXT, {"k": 3})
    assert [(s.number, len(s.statements), s.lines) for s in found] == [(1, 1, (2,)), (2, 2, (4, 5)), (4, 1, (7,))]
    assert found[2].text == "\n" * 6 + "INSERT INTO t VALUES ( 3)"
    assert split_steps("  -- nothing;\n ;") == []
    (only,) = split_steps("SELECT 1;")
    assert only.is_only


def test_each_value_needs_a_name_in_one_of_the_statements() -> None:
    with pytest.raises(BadValue, match="has no :other"):
        split_steps(TEXT, {"k": 3, "other": 1})
    with pytest.raises(BadValue, match="no value for :k"):
        split_steps(TEXT)


def raised(step: Any, error: ViewkeeperError) -> str:
    with pytest.raises(ViewkeeperError) as told, step.locate_errors():
        raise error
    return told.value.message


def test_an_error_says_which_statement_it_is_of() -> None:
    table, views, insert = split_steps(TEXT, {"k": 3})
    assert raised(table, UnknownName("No.")) == "Statement 1 (line 2): No."
    assert raised(insert, UnknownName("No.")) == "Statement 4 (line 7): No. The statements before it have run."
    last = "The statements before it have run."
    assert raised(views, UnknownName("No.")) == f"Statements 2 to 3 (lines 4 to 5): No. {last}"
    of_one = UnknownName("b: No.")
    of_one.view = "B"
    assert raised(views, of_one) == f"Statement 3 (line 5): b: No. {last}"
    assert raised(views, UnknownName("Statement 2 (line 5): b: No.")) == f"Statement 3 (line 5): b: No. {last}"
    (only,) = split_steps("SELECT 1")
    assert raised(only, UnknownName("No.")) == "No."


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        ("\n\n  SELECT x", "There (line 1, pos 7).", "There (line 3, pos 9)."),
        ("\nSELECT 1,\n x", "There; line 2 pos 1", "There; line 3 pos 1"),
        ("CREATE MATERIALIZED VIEW v AS\n SELECT x", "There; line 1 pos 7", "There; line 2 pos 8"),
        ("CREATE MATERIALIZED VIEW v WITH (sync = true) AS SELECT x", "At (line 1, pos 0)", "At (line 1, pos 49)"),
        ("INSERT INTO t SELECT x", "At (line 1, pos 7)", "At (line 1, pos 21)"),
        ("UPDATE t SET v = x", "There; line 1 pos 7", "There"),
        ("DROP TABLE t", "'t' (line 1) is none.", "'t' (line 1) is none."),
    ],
)
def test_lines_and_columns_count_in_the_whole_text(text: str, given: str, told: str) -> None:
    written = [cursor.TokenCursor(text, tokens) for tokens in cursor.split_statements(text)]
    with pytest.raises(UnknownName) as error, count_lines_from_text(text, written):
        raise UnknownName(given)
    assert error.value.message == told
