"""How often to look for news, where nobody tells: after an eighth of the time that nothing has come.

A look is a short read, and news are seen late by an eighth of what they took to come. Doubling pauses would be late by
up to as much again.
"""

from __future__ import annotations

_MIN_PAUSE, _MAX_PAUSE = 0.001, 0.02


def poll_pause(idle: float) -> float:
    """Seconds until the next look, when nothing came for so many."""
    return min(max(idle / 8, _MIN_PAUSE), _MAX_PAUSE)
