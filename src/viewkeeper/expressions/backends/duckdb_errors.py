"""Translation of DuckDB's runtime errors to EvaluationError, with Spark's error conditions.

Errors that rendered expressions raise themselves begin with the condition (`DIVIDE_BY_ZERO: …`). Errors of DuckDB's own
checks are recognized by their text.
"""

from __future__ import annotations

import re

from viewkeeper.errors import EvaluationError

_OWN_MESSAGE = re.compile(r"Invalid Input Error: ([A-Z][A-Z0-9_.]+): (.*)", re.DOTALL)
_DUCKDB_MESSAGES = (
    ("Division by zero", "DIVIDE_BY_ZERO", "Division by zero."),
    ("Could not cast value", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("value is out of range!", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("Failed to cast decimal value", "CAST_OVERFLOW", "A number does not fit the type it is cast to."),
    ("out of range for the destination type", "CAST_OVERFLOW", "A number does not fit the type it is cast to."),
    (" to DECIMAL(", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("Could not convert string", "CAST_INVALID_INPUT", "A text cannot be read as the type it is cast to."),
    ("Overflow in multiplication of DECIMAL", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("Overflow in addition of DECIMAL", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("Overflow in subtraction of DECIMAL", "NUMERIC_VALUE_OUT_OF_RANGE", "A number does not fit its decimal type."),
    ("Overflow", "ARITHMETIC_OVERFLOW", "An integer result does not fit its type."),
    ("out of range", "DATETIME_OVERFLOW", "A date or time is out of range."),
)
_DUCKDB_ERRORS = ("InvalidInputException", "OutOfRangeException", "ConversionException")


def translate_error(exception: BaseException) -> EvaluationError | None:
    """Return the evaluation error for an exception of DuckDB, or the exception itself if it is one; None if the data
    did not cause the exception."""
    if isinstance(exception, EvaluationError):
        return exception
    if type(exception).__name__ not in _DUCKDB_ERRORS:
        return None
    text = str(exception).split("\n\nLINE")[0].strip()
    if match := _OWN_MESSAGE.match(text):
        return EvaluationError(f"{match[1]}: {match[2].strip()}")
    for words, condition, meaning in _DUCKDB_MESSAGES:
        if words in text:
            return EvaluationError(f"{condition}: {meaning} ({_detail(text)})")
    return None


def _detail(text: str) -> str:
    """Return DuckDB's message without its class and its advice."""
    return (
        text.split(": ", 1)[-1]
        .split(" when casting from source column")[0]
        .split(". Use TRY")[0]
        .split(". You might")[0]
        .rstrip(".;! ")
    )
