"""A text in SQL is the one that Spark reads."""

from __future__ import annotations

from typing import Any

import pytest

from viewkeeper.plan.tokens import tokens

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
    [token] = tokens(text)
    assert token.value == spark.sql(f"SELECT {text}").head()[0]
