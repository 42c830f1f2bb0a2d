"""A program ends: what still runs in the background ends first, before DuckDB closes itself to it.

DuckDB has a hook of its own at exit. From then on it reads nothing more for a statement that had begun, and a batch at
that statement fails. Hooks run last come, first served, so ours is registered after DuckDB's, which importing it does:
with the maintainer, and only then, since DuckDB takes longer to import than all else that reading a row needs.

The hooks that `continuous` and `holding` register by themselves come later. They are for what a program's own hooks
began after this one.
"""

from __future__ import annotations

import atexit

import duckdb  # noqa: F401

from viewkeeper.maintain import continuous, registry


def _end_maintenance() -> None:
    continuous.stop_all_maintenance()
    registry.end_all_maintainers()


atexit.register(_end_maintenance)
