"""Names and key values as segments of a URL's path, as a server of views reads them.

    ~null          NULL
    ~text          text as it stands, where it begins with ~, or is "." or "..", which browsers take out of a path
    base64url      BINARY

Everything is percent-encoded, a slash too.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

NULL = "~null"
RESERVED = ("views", "tables", "sql", "status", "events", "openapi.json")
"""Names of the interface's own: a table that is called so is written with ~."""


def segment_of(value: Any) -> str:
    """A key's value as a segment."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        text = base64.urlsafe_b64encode(value).decode()
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if text.startswith("~") or text in (".", ".."):
        text = "~" + text
    return quote(text, safe="")


def name_segment(name: str) -> str:
    """A table's or view's name as a segment."""
    reserved = name.startswith("~") or name in (".", "..", *RESERVED)
    return quote("~" + name if reserved else name, safe="")
