"""Polling interval where no notification exists: an eighth of the time since the last change.

A poll is a short read, and a change is seen late by at most an eighth of the time that it took to arrive. With doubled
pauses the delay could be as long as that time.
"""

from __future__ import annotations

_MIN_PAUSE, _MAX_PAUSE = 0.001, 0.02


def poll_pause(idle: float) -> float:
    """Return the seconds until the next poll, after `idle` seconds without a change."""
    return min(max(idle / 8, _MIN_PAUSE), _MAX_PAUSE)
