"""Pieces and ranges: how an operator does its work without holding all of it at once.

    linear     lookup, bulk join         each piece of the output leaves before the next is made
    by hash    aggregate, recompute, …   one step if little arrived; else one for each range of hashes: a group or key
                                         is whole in its range, and the runs of the ranges follow each other

So an output need never exist as a whole, and a step's temporaries are those of one range. What cannot be divided is the
rows of one hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from viewkeeper.model.names import HASH
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports, slot_names
from viewkeeper.resources.memory import table_bytes
from viewkeeper.state.run import Arrangement, Run, arrange, concat_ordered_runs, distinct_hashes, hashes_of

StepFunction = Callable[[list[pa.Table | None]], tuple[pa.Table, list[pa.Table]]]
"""From what arrived at the ports to the output, and what to add to each slot."""

_MAX_RANGE_BITS = 12
"""Bits of the hash by which ranges are told apart: those above them are the same at all ports of an aggregate."""

_PIECES_PER_STEP = 1
"""Pieces that are one step's work: it sorts, groups and compares them, and has several copies of them at a time."""

_EMPTY_RUN = Run(pa.schema([(HASH, pa.uint64())]).empty_table())


def combine_deltas(tables: Sequence[pa.Table]) -> pa.Table | None:
    """The sum of deltas in one chunk; None of none."""
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else concat_deltas(tables).combine_chunks()


def concat_deltas(tables: Sequence[pa.Table]) -> pa.Table:
    """The sum of deltas as it is, nothing copied."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def arrange_input(context: ExecutionContext, operator: Operator, ports: Ports) -> Iterator[pa.Table]:
    """What arrived is kept, and nothing is passed on."""
    if not ports[0]:
        return iter(())
    aside = context.memory.spill
    if sum(map(table_bytes, ports[0])) <= context.memory.buffer_bytes:
        context.emit_runs(operator, [arrange(combine_deltas(ports[0]))])
    else:
        runs = [
            Run(aside(arrange(part[0]).rows)) for part in split_by_hash_range(context, ports) if part[0] is not None
        ]
        context.emit_runs(operator, [concat_ordered_runs(runs, aside)])
    return iter(())


def run_step_by_ranges(
    context: ExecutionContext, operator: Operator, ports: Ports, step: StepFunction, read_bytes: int = 0
) -> Iterator[pa.Table]:
    """The outputs of a step for each range, and the runs of all of them to its slots. `size`: bytes that it reads."""
    grown: list[list[Run]] = [[] for _ in slot_names(operator)]
    aside, held = context.memory.spill, 0
    for part in split_by_hash_range(context, ports, read_bytes):
        if all(rows is None for rows in part):
            continue
        output, added = step(part)
        for runs, delta in zip(grown, added, strict=True):
            if delta.num_rows:
                run = arrange(delta)
                read_bytes = table_bytes(run.rows)
                if (
                    held + read_bytes > context.memory.growth_bytes
                ):  # each range's may be small, and all of them are not
                    run = Run(aside(run.rows))
                else:
                    held += read_bytes
                runs.append(run)
        yield output
    context.emit_runs(
        operator,
        [runs[0] if len(runs) == 1 else concat_ordered_runs(runs, aside) if runs else _EMPTY_RUN for runs in grown],
    )


def estimate_read_bytes(
    context: ExecutionContext, states: Sequence[Arrangement], ports: Ports, *, is_single_row: bool = False
) -> int:
    """Bytes of the rows that are read for what arrived, if that can be much. Where a run has hardly more
    than a `single` row of a hash, as sums have, and little arrived, nothing is sought."""
    much = _PIECES_PER_STEP * context.memory.piece_bytes
    if sum(state.num_bytes for state in states) <= much:
        return 0
    if is_single_row:
        arrived = sum(table.num_rows for tables in ports for table in tables)
        if arrived * sum(run.num_bytes / max(1, run.num_rows) for state in states for run in state.runs) <= much:
            return 0
    hashes = distinct_hashes(*(table for tables in ports for table in tables))
    found = 0.0
    for run in (run for state in states for run in state.runs):
        if run.may_contain(hashes):
            found += run.count_rows(hashes) * run.num_bytes / max(1, run.num_rows)
    return int(found)


def split_by_hash_range(
    context: ExecutionContext, ports: Ports, read_bytes: int = 0
) -> Iterator[list[pa.Table | None]]:
    """What arrived at the ports, by ascending ranges of the hash if it is much, or needs so many bytes beside it."""
    read_bytes += sum(table_bytes(table) for tables in ports for table in tables)
    bits = min(_MAX_RANGE_BITS, (read_bytes // (_PIECES_PER_STEP * context.memory.piece_bytes)).bit_length())
    if not bits:
        yield [combine_deltas(tables) for tables in ports]
        return
    shift = np.uint64(64 - bits)
    batches = [concat_deltas(tables).to_batches() if tables else [] for tables in ports]
    tops = [[(hashes_of(pa.table(batch)) >> shift).astype(np.uint16) for batch in port] for port in batches]
    for top in range(1 << bits):
        part = []
        for port, codes in zip(batches, tops, strict=True):
            chosen = [(b, np.flatnonzero(c == top)) for b, c in zip(port, codes, strict=True)]
            part.append(combine_deltas([pa.table(b.take(pa.array(rows))) for b, rows in chosen if len(rows)]))
        yield part
