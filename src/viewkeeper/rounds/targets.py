"""Views whose changes are resolved by tasks, and how their rows come to the task that owns a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.names import HASH, WEIGHT, quoted
from viewkeeper.model.schema import Table
from viewkeeper.operators.duck import Duck
from viewkeeper.rounds.messages import SINK, Message, routed


@dataclass(frozen=True)
class Target:
    """A view's table, and the operator at its end, which is told of errors."""

    table: Table
    sink: str


def by_key(duck: Duck, target: Target, delta: pa.Table, parts: int) -> Iterator[Message]:
    """A view's rows on their way to the tasks that own their keys."""
    keys = ", ".join(quoted(k.column) for k in target.table.key)
    if keys:
        names = [*(c.name for c in target.table.columns), WEIGHT]
        hashes = duck.run(f"SELECT hash({keys}) AS {HASH} FROM input", input=delta.rename_columns(names))[HASH]
    else:  # a view of one row
        hashes = pa.chunked_array([pa.array(np.zeros(delta.num_rows, np.uint64))])
    return routed(SINK, target.table.id, delta.append_column(HASH, hashes), parts)
