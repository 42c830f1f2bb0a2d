"""How a view is kept fresh, as its options name it (the dissertation's chapter 6)."""

from __future__ import annotations

from viewkeeper.model.catalog import View

SCHEDULED = ("SN", "SC", "ISN", "ISC")
INCREMENTAL = ("IN", "IMB", "SNI", "SCI", "SNIMB", "SCIMB")
"""Loaded once and then maintained by changes: exactly the hybrids of 6.3. `IN`, `SNI`, `SCI`: call by call."""

COMPLETE = ("IN", "SNI", "SCI")
"""Every write call's state shows."""


def strategy_of(view: View) -> str:
    return view.options.get("strategy", "IMB").upper()


def is_scheduled(view: View) -> bool:
    return strategy_of(view) in SCHEDULED


def is_complete(view: View) -> bool:
    return strategy_of(view) in COMPLETE


def runs_alone(view: View, before_images: bool) -> bool:
    """Whether a view has state and a cut of its own: it is made at intervals, or call by call while others take many.

    The latter needs a store that knows what rows were `before_images`: elsewhere all views go call by call with it.
    """
    return is_scheduled(view) or (before_images and is_complete(view))


def interval_of(view: View) -> float:
    return float(view.options.get("interval", "5"))
