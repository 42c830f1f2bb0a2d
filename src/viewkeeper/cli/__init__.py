"""The command line `vk`. An error is one line on standard error; exit code 1 is an error, 2 a wrong call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `vk` and exit. The commands are imported here, because those of other packages import this package."""
    from viewkeeper.cli import app

    app.main(arguments)
