"""Values to draw that several tests share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

WHOLE: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
}
"""By the name of the type: what is true or false, and whole numbers."""
