"""A text in SQL is the one that Spark reads."""

from __future__ import annotations

from typing import Any

import pytest

from viewkeeper.errors import BadStatement
from viewkeeper.plan.catalyst import front_session, read_query
from viewkeeper.syntax.lexer import lex

TEXTS = [
    "'it''s'",
    '"it\'s"',
    r"'a\tb\\n'",
    r"r'a\tb'",
    r"'\101é\u00e9\U0001F600'",
    r"'50\%'",
    "''",
    "'a\nb'",
    r"'\''''",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_the_one_that_spark_reads(spark: Any, text: str) -> None:
    [token] = lex(text)
    assert token.value == spark.sql(f"SELECT {text}").head()[0]


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {'(' * 3000}1{')' * 3000} AS a",
        f"SELECT {'abs(' * 1000}1{')' * 1000} AS a",
        f"SELECT {' + '.join(['1'] * 5000)} AS a",
    ],
)
def test_a_text_that_is_nested_too_deeply_is_told_so(spark: Any, query: str) -> None:
    with pytest.raises(BadStatement, match="nested too deeply") as refused:
        read_query(front_session(spark), query, {})
    assert "StackOverflow" not in str(refused.value)
    assert "parentheses" in refused.value.hint
