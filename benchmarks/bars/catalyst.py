"""How much of a CREATE is Spark's reading of the query."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def catalyst_seconds() -> Iterator[list[float]]:
    """The seconds that Catalyst takes meanwhile."""
    from viewkeeper.plan import catalyst

    real, spent = catalyst.read_query, [0.0]

    def timed(*given: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*given)
        finally:
            spent[0] += time.perf_counter() - started

    catalyst.read_query = timed
    try:
        yield spent
    finally:
        catalyst.read_query = real
