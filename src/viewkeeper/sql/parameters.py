"""Values for the names that a statement leaves open: `WHERE k = :k`.

    :name    a colon and a name, anywhere a value may stand; a value becomes a literal of Spark's, whatever it holds

A text is put in quotes with all that is special in it escaped, so nothing in it is ever read as SQL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.plan.families.texts import declared
from viewkeeper.plan.tokens import open_names, tokens


def bound(text: str, values: Mapping[str, Any]) -> str:
    """The statement with a literal for each open name; every name needs a value, and every value a name.

    The parameters that a family of views declares are its own.
    """
    found = list(tokens(text))
    parts: list[str] = []
    end, used = 0, set()
    own = declared(found)
    for colon, name in open_names(found):
        if name.value.lower() in own:
            continue
        if name.value not in values:
            if own:
                raise BadValue(
                    f":{name.value} is no parameter.", hint=f"Declared in PARAMETERS: {', '.join(sorted(own))}."
                )
            known = ", ".join(sorted(values)) or "none"
            raise BadValue(f"There is no value for :{name.value}.", hint=f"Give it by name; there is: {known}.")
        used.add(name.value)
        parts += [
            text[end : colon.start],
            " ",
            literal(name.value, values[name.value]),
        ]  # apart: `-` and -1 are no comment
        end = name.end
    if unused := sorted(set(values) - used):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")
    return "".join([*parts, text[end:]])


def literal(name: str, value: Any) -> str:
    """A Python value as a literal of Spark SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return (
            f"{value!r}{'' if 'e' in repr(value) else 'e0'}" if math.isfinite(value) else f"'{_NO_NUMBERS[str(value)]}'"
        )
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
        return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}Z'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    raise BadValue(
        f"The value of :{name} is a {type(value).__name__}, which SQL has no literal for.",
        hint="Give None, a bool, int, float, Decimal, str, bytes, date or datetime.",
    )


_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
