"""The exit hook of a maintaining process: ends background work before DuckDB's own exit hook runs.

After DuckDB's exit hook, a statement that has begun reads no more input, and the batch that runs it fails. Exit hooks
run in reverse order of registration, and importing DuckDB registers its hook; this module therefore imports DuckDB
first. Only the maintainer imports this module, because importing DuckDB takes longer than all else that reading a row
needs.

The hooks that `continuous` and `registry` register themselves run after this one. They end work that a program's own
exit hooks began in the meantime.
"""

from __future__ import annotations

import atexit

import duckdb  # noqa: F401

from viewkeeper.maintain import continuous, registry


def _end_maintenance() -> None:
    continuous.stop_all_maintenance()
    registry.end_all_maintainers()


atexit.register(_end_maintenance)
