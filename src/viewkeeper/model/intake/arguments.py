"""What callers give: each kind of argument is looked at here, and a wrong one is a BadValue that says what to give.

A truth value is no number, NaN is no time, and a number is no name: Python would let them pass and fail elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from viewkeeper.errors import BadValue


def check_text(value: Any, what: str, hint: str) -> str:
    """A text: a name, a statement."""
    if not isinstance(value, str):
        raise BadValue(f"{what} is a text, not {shorten(value)}.", hint=hint)
    return value


def check_texts(value: Any, what: str, hint: str) -> Mapping[str, str]:
    """Texts by name."""
    if not isinstance(value, Mapping):
        raise BadValue(f"{what} are a dict, not {shorten(value)}.", hint=hint)
    for name, one in value.items():
        check_text(name, f"A name of {what.lower()}", hint)
        check_text(one, f"{name}", hint)
    return value


def check_names(value: Any, what: str, hint: str) -> list[str]:
    """A list of texts."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise BadValue(f"{what} are a list of names, not {shorten(value)}.", hint=hint)
    return [check_text(one, f"One of the {what.lower()}", hint) for one in value]


def check_seconds(value: Any, what: str, *, positive: bool = False) -> float:
    """A time, 0 or more; `positive`: more than 0. Infinity is as long as a thread can wait."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not known or value < 0 or (positive and value == 0):
        least = "more than 0" if positive else "0 or more"
        raise BadValue(f"{what} is {shorten(value)}.", hint=f"Give a number of seconds, {least}.")
    return min(float(value), threading.TIMEOUT_MAX)


def check_whole_number(value: Any, what: str, minimum: int) -> int:
    """A whole number, also one of numpy's."""
    known = not isinstance(value, bool) and hasattr(value, "__index__")
    if not known or int(value) < minimum:
        raise BadValue(f"{what} is {shorten(value)}.", hint=f"Give a whole number, {minimum} or more.")
    return int(value)


def check_choice(value: Any, what: str, choices: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in choices:
        raise BadValue(f"There is no {what} {shorten(value)}.", hint=f"Known: {', '.join(choices)}.")
    return value


def shorten(value: Any) -> str:
    """A value as a message shows it."""
    written = repr(value)
    return written if len(written) <= 60 else written[:57] + "..."
