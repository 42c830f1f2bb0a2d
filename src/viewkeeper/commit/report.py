"""What a refresh says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MENDED = "mended"
"""The store's record of state that was made anew: {time, damage: why, count: how often}."""


@dataclass(frozen=True)
class BatchReport:
    """What a refresh did. `epoch` is the published batch; `views` counts changed rows by view.

    Views that are kept together as a family are counted together: "sales_0 and 999 like it".
    """

    epoch: int
    changes: int
    lane: str
    seconds: float
    views: Mapping[str, int] = field(default_factory=dict)
    suspended: Mapping[str, str] = field(default_factory=dict)
    """Views that failed on their own rows and were suspended since the last report, each with why: it names the row."""
    mended: tuple[str, ...] = ()
    """Why state was made anew, if it was, since the last report: damage that was found, or another version's state."""
    afterwards: tuple[str, ...] = ()
    """What came after publication and failed. The batch is published; this is tried again after a later one."""
    why: str = ""
    """Why this lane was taken."""
    more: bool = False
    """Whether more waited than it could take."""
