"""Named crash points, for the tests that kill a process at every step.

`VK_CRASH_AT=commit.3.before` makes the process kill itself, as with SIGKILL, when it passes that point; `name@2` at
the second passing. Unarmed, a point is one comparison with None.
"""

from __future__ import annotations

import os
import signal

_armed: list[str] | None = os.environ["VK_CRASH_AT"].split("@") if os.environ.get("VK_CRASH_AT") else None
_passed = 0


def point(name: str) -> None:
    """Die here if this point is armed."""
    if _armed is not None and _armed[0] == name:
        global _passed
        _passed += 1
        if _passed >= int(_armed[1] if len(_armed) > 1 else 1):
            os.kill(os.getpid(), signal.SIGKILL)
