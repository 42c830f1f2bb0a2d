"""Chunked execution: run an operator's step within the memory budget, piece by piece or hash range by hash range.

    linear     lookup, bulk join         each piece of the output is passed on before the next is computed
    by hash    aggregate, recompute, …   one step for a small input, else one step for each range of hashes; all rows
                                         of a group or key are in one range, and the runs of the ranges are concatenated

No output has to be in memory as a whole, and the temporary tables of a step are those of one range. The rows of one
hash cannot be divided.
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
"""Computes, from the deltas of the ports, the output delta and the delta to add to each state slot."""

_MAX_RANGE_BITS = 12
"""Top bits of the hash that tell ranges apart, at most. A group's rows agree in the top 16 bits at all ports of an
aggregate (`value_hash_sql`), so a range has whole groups."""

_PIECES_PER_STEP = 1
"""Pieces that one step processes. A step sorts, groups and compares its rows, so it holds several copies of them."""

_EMPTY_RUN = Run(pa.schema([(HASH, pa.uint64())]).empty_table())


def combine_deltas(tables: Sequence[pa.Table]) -> pa.Table | None:
    """Return the sum of deltas in one chunk, or None if there are no deltas."""
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else concat_deltas(tables).combine_chunks()


def concat_deltas(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the sum of deltas without copying any column."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def arrange_input(context: ExecutionContext, operator: Operator, ports: Ports) -> Iterator[pa.Table]:
    """Add the input to the operator's state; the operator has no output."""
    if not ports[0]:
        return iter(())
    spill = context.memory.spill
    if sum(map(table_bytes, ports[0])) <= context.memory.buffer_bytes:
        context.emit_runs(operator, [arrange(combine_deltas(ports[0]))])
    else:
        runs = [
            Run(spill(arrange(part[0]).rows)) for part in split_by_hash_range(context, ports) if part[0] is not None
        ]
        context.emit_runs(operator, [concat_ordered_runs(runs, spill)])
    return iter(())


def run_step_by_ranges(
    context: ExecutionContext, operator: Operator, ports: Ports, step: StepFunction, read_bytes: int = 0
) -> Iterator[pa.Table]:
    """Run a step for each range of hashes: yield the outputs, and emit the concatenated runs of each slot.

    `read_bytes`: bytes of state that the step reads beside its input.
    """
    slot_runs: list[list[Run]] = [[] for _ in slot_names(operator)]
    spill, bytes_in_memory = context.memory.spill, 0
    for deltas in split_by_hash_range(context, ports, read_bytes):
        if all(rows is None for rows in deltas):
            continue
        output, added = step(deltas)
        for runs, delta in zip(slot_runs, added, strict=True):
            if delta.num_rows:
                run = arrange(delta)
                read_bytes = table_bytes(run.rows)
                # The run of each range may be small while their sum is not.
                if bytes_in_memory + read_bytes > context.memory.growth_bytes:
                    run = Run(spill(run.rows))
                else:
                    bytes_in_memory += read_bytes
                runs.append(run)
        yield output
    context.emit_runs(
        operator,
        [runs[0] if len(runs) == 1 else concat_ordered_runs(runs, spill) if runs else _EMPTY_RUN for runs in slot_runs],
    )


def estimate_read_bytes(
    context: ExecutionContext, states: Sequence[Arrangement], ports: Ports, *, is_single_row: bool = False
) -> int:
    """Estimate the bytes of state rows that a step reads for its input; 0 where they are surely few.

    The runs are searched only if the whole state is large. `is_single_row`: the state has about one row for each hash,
    as sums have; then the number of input rows bounds the bytes, and a small input needs no search.
    """
    limit = _PIECES_PER_STEP * context.memory.piece_bytes
    if sum(state.num_bytes for state in states) <= limit:
        return 0
    if is_single_row:
        input_rows = sum(table.num_rows for tables in ports for table in tables)
        if input_rows * sum(run.num_bytes / max(1, run.num_rows) for state in states for run in state.runs) <= limit:
            return 0
    hashes = distinct_hashes(*(table for tables in ports for table in tables))
    byte_count = 0.0
    for run in (run for state in states for run in state.runs):
        if run.may_contain(hashes):
            byte_count += run.count_rows(hashes) * run.num_bytes / max(1, run.num_rows)
    return int(byte_count)


def split_by_hash_range(
    context: ExecutionContext, ports: Ports, read_bytes: int = 0
) -> Iterator[list[pa.Table | None]]:
    """Yield the deltas of the ports by ascending ranges of the hash; one range if the input and the `read_bytes` of
    state that the step reads are small."""
    read_bytes += sum(table_bytes(table) for tables in ports for table in tables)
    bits = min(_MAX_RANGE_BITS, (read_bytes // (_PIECES_PER_STEP * context.memory.piece_bytes)).bit_length())
    if not bits:
        yield [combine_deltas(tables) for tables in ports]
        return
    shift = np.uint64(64 - bits)
    batches = [concat_deltas(tables).to_batches() if tables else [] for tables in ports]
    range_indexes = [[(hashes_of(pa.table(batch)) >> shift).astype(np.uint16) for batch in port] for port in batches]
    for range_index in range(1 << bits):
        deltas = []
        for port, codes in zip(batches, range_indexes, strict=True):
            chosen = [(b, np.flatnonzero(c == range_index)) for b, c in zip(port, codes, strict=True)]
            deltas.append(combine_deltas([pa.table(b.take(pa.array(rows))) for b, rows in chosen if len(rows)]))
        yield deltas
