"""How a view is kept fresh, as its options name it (the dissertation's chapter 6)."""

from __future__ import annotations

from viewkeeper.model.catalog import View

SCHEDULED = ("SN", "SC", "ISN", "ISC")
INCREMENTAL = ("IN", "IMB", "SNI", "SCI", "SNIMB", "SCIMB")
"""Loaded once and then maintained by changes: exactly the hybrids of 6.3. `IN`, `SNI`, `SCI`: call by call."""

COMPLETE = ("IN", "SNI", "SCI")


def strategy_of(view: View) -> str:
    return view.options.get("strategy", "IMB").upper()


def is_scheduled(view: View) -> bool:
    return strategy_of(view) in SCHEDULED


def interval_of(view: View) -> float:
    return float(view.options.get("interval", "5"))
