"""Checks of the arguments of public calls. A wrong argument raises a BadValue that says what to pass.

A boolean is not a number, NaN is not a time, and a number is not a name: Python would accept them and fail elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from viewkeeper.errors import BadValue


def check_text(value: Any, what: str, hint: str) -> str:
    """Check a text, such as a name or a statement."""
    if not isinstance(value, str):
        raise BadValue(f"{what} is a text, not {shorten(value)}.", hint=hint)
    return value


def check_texts(value: Any, what: str, hint: str) -> Mapping[str, str]:
    """Check a mapping from names to texts."""
    if not isinstance(value, Mapping):
        raise BadValue(f"{what} are a dict, not {shorten(value)}.", hint=hint)
    for name, text in value.items():
        check_text(name, f"A name of {what.lower()}", hint)
        check_text(text, f"{name}", hint)
    return value


def check_names(value: Any, what: str, hint: str) -> list[str]:
    """Check a list of texts."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise BadValue(f"{what} are a list of names, not {shorten(value)}.", hint=hint)
    return [check_text(name, f"One of the {what.lower()}", hint) for name in value]


def check_seconds(value: Any, what: str, *, positive: bool = False) -> float:
    """Check a time of 0 or more seconds, or more than 0 if `positive`. Infinity becomes the longest possible wait."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not is_number or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "0 or more"
        raise BadValue(f"{what} is {shorten(value)}.", hint=f"Give a number of seconds, {bound}.")
    return min(float(value), threading.TIMEOUT_MAX)


def check_whole_number(value: Any, what: str, minimum: int) -> int:
    """Check a whole number, including numpy's."""
    is_whole = not isinstance(value, bool) and hasattr(value, "__index__")
    if not is_whole or int(value) < minimum:
        raise BadValue(f"{what} is {shorten(value)}.", hint=f"Give a whole number, {minimum} or more.")
    return int(value)


def check_choice(value: Any, what: str, choices: Sequence[str]) -> str:
    """Check that a value is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise BadValue(f"There is no {what} {shorten(value)}.", hint=f"Known: {', '.join(choices)}.")
    return value


def shorten(value: Any) -> str:
    """Return the representation of a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
