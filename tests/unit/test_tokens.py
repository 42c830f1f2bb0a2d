"""SQL text is cut as Spark cuts it."""

from __future__ import annotations

import pytest

from viewkeeper.errors import BadStatement
from viewkeeper.syntax.lexer import lex


def _cut(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.value) for token in lex(text)]


def test_words_names_numbers_and_signs() -> None:
    found = _cut("SELECT a1, `odd ``name`, 1.5e-3, .5, 10l, 2.5BD, 1abc, x'0aF', x FROM t;")
    values = [value for _, value in found]
    assert values == ["SELECT", "a1", ",", "odd `name", ",", "1.5e-3", ",", ".5", ",", "10", ",", "2.5", ",", "1abc",
                      ",", "0aF", ",", "x", "FROM", "t", ";"]  # fmt: skip
    kinds = {value: kind for kind, value in found}
    assert (kinds["10"], kinds["1abc"], kinds["0aF"], kinds["odd `name"]) == ("number", "word", "bytes", "name")


def test_gaps_are_no_tokens() -> None:
    assert _cut("a -- 'b\n/* c /* d */ ' */e") == [("word", "a"), ("word", "e")]
    assert [(t.value, t.line) for t in lex("a\n/*\n*/b 'x\ny' c")] == [("a", 1), ("b", 3), ("x\ny", 3), ("c", 4)]


def test_places_are_those_of_the_text() -> None:
    text = "SELECT 'a''b' /* c */ `d`"
    assert [text[t.start : t.end] for t in lex(text)] == ["SELECT", "'a''b'", "`d`"]


@pytest.mark.parametrize("text", ["'a", '"a', "`a", "/* a", "/* a /* b */", "'a\\'"])
def test_what_is_not_closed_is_an_error(text: str) -> None:
    with pytest.raises(BadStatement, match="unclosed"):
        list(lex(text))


def test_a_character_beyond_the_last_is_an_error() -> None:
    with pytest.raises(BadStatement, match="no character"):
        list(lex(r"'\UFFFFFFFF'"))
