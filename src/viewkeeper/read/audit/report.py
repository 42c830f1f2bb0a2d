"""The result of an audit, and the part of it that is stored for `status` and `doctor`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

AUDIT_NOTE = "audit"
"""The store's record of the last audit."""


@dataclass(frozen=True)
class Difference:
    """One key of a view: the row of its query and the row of the view; None where a side has no row."""

    key: Mapping[str, Any]
    expected: Mapping[str, Any] | None
    found: Mapping[str, Any] | None


@dataclass(frozen=True)
class ViewAudit:
    """The result for one view: rows compared, number of keys that differ, the first of them; or why it was skipped."""

    view: str
    rows: int
    differences: int
    skipped: str | None = None
    repaired: bool = False
    examples: tuple[Difference, ...] = field(default=(), repr=False)
    remaining: int | None = None
    """Number of keys that still differ after a repair; None: no repair was tried."""
    failed: str | None = None
    """Why the view could not be compared, or not repaired."""

    @property
    def is_wrong(self) -> bool:
        return self.failed is not None or (self.differences > 0 and not self.repaired)

    @property
    def advice(self) -> str:
        """What to do about a wrong view."""
        if self.failed is not None and self.remaining is None and not self.differences:
            return f"It could not be compared: {self.failed}"
        if self.failed is not None:
            return f"NOT repaired: making it anew failed: {self.failed} The view is as it was."
        if self.remaining:
            return (
                f"NOT repaired: it was made anew from its tables and {self.remaining} keys differ still. Spark and"
                " Viewkeeper do not agree on this query, so making it anew does not help. If LIMIT or row_number"
                " chooses among rows that tie, make the order total. Otherwise do not rely on the view: drop it or"
                " write its query in another way, and report the query with the rows shown."
            )
        return "vk audit --repair makes it anew." if self.is_wrong else ""


@dataclass(frozen=True)
class Audit:
    """An audit of one batch."""

    epoch: int
    seconds: float
    views: tuple[ViewAudit, ...]

    @property
    def differences(self) -> int:
        return sum(v.differences for v in self.views)

    @property
    def is_right(self) -> bool:
        """Whether every view that was compared is right, or was repaired."""
        return not any(v.is_wrong for v in self.views)

    def to_json(self) -> dict[str, Any]:
        views = [asdict(v) | {"advice": v.advice} for v in self.views]
        return asdict(self) | {"views": views, "differences": self.differences}


def with_repair(report: Audit, remaining: Mapping[str, int], failed: str | None) -> Audit:
    """The report with the number of differences that remain after a repair, or with the reason why it failed."""

    def updated(view: ViewAudit) -> ViewAudit:
        if not view.differences:
            return view
        if failed is not None:
            return replace(view, failed=failed)
        return replace(view, remaining=remaining[view.view], repaired=not remaining[view.view])

    return replace(report, views=tuple(updated(v) for v in report.views))


def audit_note(report: Audit) -> dict[str, Any]:
    """The stored note of an audit: what differs now, after a repair if there was one."""
    remaining = {v.view: v.differences if v.remaining is None else v.remaining for v in report.views}
    views = [[view, differences] for view, differences in remaining.items() if differences]
    failed = [[v.view, v.failed] for v in report.views if v.failed is not None]
    tried = any(v.remaining for v in report.views)
    note = {"time": time.time(), "epoch": report.epoch, "differences": sum(remaining.values()), "views": views}
    return note | {"failed": failed, "tried": tried}


def failure_note(error: Exception) -> dict[str, Any]:
    """The stored note of an audit that failed."""
    return {"time": time.time(), "error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def describe_audit_note(note: Mapping[str, Any]) -> tuple[bool, str, str]:
    """Whether the noted audit found everything right, what it found, and what to do."""
    if "error" in note:
        return False, f"it failed: {note['error']}", "vk audit says more; the views were not compared."
    failed, wrong = note.get("failed", ()), note["differences"]
    text = f"{wrong} keys differed" + "".join(f"; {view}: {n}" for view, n in note["views"])
    text += "".join(f"; {view} could not be compared: {reason}" for view, reason in failed)
    advice = "vk audit --repair makes these views anew." if wrong else "vk audit says more." if failed else ""
    if note.get("tried"):
        advice = "Making them anew did not help: vk audit says more; do not rely on these views."
    return not wrong and not failed, text, advice
