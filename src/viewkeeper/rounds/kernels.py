"""What an operator does at a site with what arrived at its ports: its output, a piece at a time.

    linear     lookup, bulk join         each piece of the output leaves before the next is made
    by hash    aggregate, recompute, …   one step if little arrived; else one for each range of hashes: a group or key
                                         is whole in its range, and the runs of the ranges follow each other

So an output need never exist as a whole, and a step's temporaries are those of one range. What cannot be divided is the
rows of one hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators import aggregate, join, recompute, threshold, topk
from viewkeeper.operators.arrangement import Arrangement, Hashes, Run, arrange, distinct_hashes, hashes_of, succession
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.plan.dataflow import (
    HASH,
    Aggregate,
    Arrange,
    BulkJoin,
    Consolidate,
    Image,
    Lookup,
    Operator,
    Recompute,
    Segment,
    TopK,
)
from viewkeeper.plan.flow import slots
from viewkeeper.store.memory import width

if TYPE_CHECKING:
    from viewkeeper.rounds.site import Site

Ports = Sequence[Sequence[pa.Table]]
Step = Callable[[list[pa.Table | None]], tuple[pa.Table, list[pa.Table]]]

_WIDEST = 12
"""Bits of the hash by which ranges are told apart: those above them are the same at all ports of an aggregate."""

_PIECES = 4
"""Pieces that are one step's work."""


def outputs(site: Site, operator: Operator, ports: Ports) -> Iterable[pa.Table]:
    """The operator's output delta for what arrived at its ports, in pieces; an arrangement has none."""
    return _KERNELS[operator.kind](site, operator, ports)


def joined(tables: Sequence[pa.Table]) -> pa.Table | None:
    """The sum of deltas in one chunk; None of none."""
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else stacked(tables).combine_chunks()


def stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """The sum of deltas as it is, nothing copied."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


# -- linear -----------------------------------------------------------------------------------------------------------


def _lookup(site: Site, operator: Lookup, ports: Ports) -> Iterator[pa.Table]:
    if not ports[0]:
        return
    slot = f"{operator.arrangement}/0"
    arrangement = site.fresh(slot) if operator.fresh else site.old(slot)
    if not arrangement.runs:
        return
    taken = [name for name, _ in operator.take]
    names = [*(c.name for c in operator.columns), WEIGHT]
    each = sum(width(run.rows.select(taken)) for run in arrangement.runs) / len(arrangement.runs)
    for piece in site.memory.pieces(stacked(ports[0])):
        probe = piece.combine_chunks()
        most = site.memory.rows(width(probe) + each)
        if operator.reach:
            key = operator.probe[0].key
            if key is None:
                raise Defect(f"{operator.id} is probed without a key.")
            found = threshold.lookup(probe, key[0], arrangement, taken, operator.reach, most)
        else:
            found = join.lookup(probe, arrangement, taken, most)
        yield from (rows.rename_columns(names) for rows in found)


def _bulk_join(site: Site, operator: BulkJoin, ports: Ports) -> Iterator[pa.Table]:
    if not all(ports):
        return iter(())
    inputs = {f"input{i}": stacked(tables) for i, tables in enumerate(ports)}
    most = site.memory.rows(sum(width(table) for table in inputs.values()))
    return site.duck.stream(operator.sql, most, **inputs)


# -- by hash ----------------------------------------------------------------------------------------------------------


def _arrange(site: Site, operator: Image | Arrange, ports: Ports) -> Iterator[pa.Table]:
    if not ports[0]:
        return iter(())
    aside = site.memory.aside
    if sum(int(table.nbytes) for table in ports[0]) <= site.memory.waiting:
        site.add(operator, [arrange(joined(ports[0]))])
    else:
        runs = [Run(aside(arrange(part[0]).rows)) for part in _ranges(site, ports) if part[0] is not None]
        site.add(operator, [succession(runs, aside)])
    return iter(())


def _consolidate(site: Site, operator: Consolidate, ports: Ports) -> Iterator[pa.Table]:
    for part in _ranges(site, ports):
        if part[0] is not None:
            yield consolidate(site.duck, part[0]).drop_columns([HASH])


def _aggregate(site: Site, operator: Aggregate, ports: Ports) -> Iterator[pa.Table]:
    state = site.state(operator)
    return _stepped(site, operator, ports, lambda part: aggregate.step(site.duck, operator.spec, state, part))


def _recompute(site: Site, operator: Recompute, ports: Ports) -> Iterator[pa.Table]:
    shared = {
        port: partial(_slice, site, f"{arrangement}/0", operator.inputs[port][0])
        for port, arrangement in enumerate(operator.shared)
        if arrangement is not None
    }
    state = site.state(operator)
    read = [*state, *(site.fresh(f"{a}/0") for a in operator.shared if a is not None)]
    size = _touched(site, read, ports) if operator.inputs[0][0].key else 0

    def step(part: list[pa.Table | None]) -> tuple[pa.Table, list[pa.Table]]:
        return recompute.step(site.duck, operator, state, part, shared)

    return _stepped(site, operator, ports, step, size)


def _touched(site: Site, states: Sequence[Arrangement], ports: Ports) -> int:
    """Bytes of the rows that are read for what arrived, if that can be much."""
    if sum(state.num_bytes for state in states) <= _PIECES * site.memory.piece:
        return 0
    hashes = distinct_hashes(*(table for tables in ports for table in tables))
    found = 0.0
    for run in (run for state in states for run in state.runs):
        start, stop = run.ranges(hashes)
        found += int((stop - start).sum()) * width(run.rows)
    return int(found)


def _slice(site: Site, slot: str, segment: Segment, hashes: Hashes) -> pa.Table:
    """The rows of these hashes from a shared arrangement, as the operator's own segment shows them."""
    arrangement = site.fresh(slot)
    if not arrangement.runs:
        return recompute.no_rows(segment.columns)
    return site.duck.run(segment.sql, input=arrangement.slice(hashes))


def _topk(site: Site, operator: TopK, ports: Ports) -> Iterator[pa.Table]:
    """The first rows of all: nothing to divide."""
    if ports[0]:
        output, added = topk.step(site.duck, operator, site.state(operator), joined(ports[0]))
        site.add(operator, [arrange(delta) for delta in added])
        yield output


def _stepped(site: Site, operator: Operator, ports: Ports, step: Step, size: int = 0) -> Iterator[pa.Table]:
    grown: list[list[Run]] = [[] for _ in slots(operator)]
    for part in _ranges(site, ports, size):
        if all(rows is None for rows in part):
            continue
        output, added = step(part)
        for runs, delta in zip(grown, added, strict=True):
            if delta.num_rows:
                run = arrange(delta)
                runs.append(run if run.rows.nbytes < site.memory.piece else Run(site.memory.aside(run.rows)))
        yield output
    aside = site.memory.aside
    site.add(operator, [runs[0] if len(runs) == 1 else succession(runs, aside) if runs else _NOTHING for runs in grown])


_NOTHING = Run(pa.schema([(HASH, pa.uint64())]).empty_table())


def _ranges(site: Site, ports: Ports, size: int = 0) -> Iterator[list[pa.Table | None]]:
    """What arrived at the ports, by ascending ranges of the hash if it is much, or needs so many bytes beside it."""
    size += sum(int(table.nbytes) for tables in ports for table in tables)
    bits = min(_WIDEST, (size // (_PIECES * site.memory.piece)).bit_length())
    if not bits:
        yield [joined(tables) for tables in ports]
        return
    shift = np.uint64(64 - bits)
    batches = [stacked(tables).to_batches() if tables else [] for tables in ports]
    tops = [[(hashes_of(pa.table(batch)) >> shift).astype(np.uint16) for batch in port] for port in batches]
    for top in range(1 << bits):
        part = []
        for port, codes in zip(batches, tops, strict=True):
            chosen = [(b, np.flatnonzero(c == top)) for b, c in zip(port, codes, strict=True)]
            part.append(joined([pa.table(b.take(pa.array(rows))) for b, rows in chosen if len(rows)]))
        yield part


_KERNELS: Mapping[str, Callable[[Site, Any, Ports], Iterable[pa.Table]]] = {
    "image": _arrange,
    "arrange": _arrange,
    "lookup": _lookup,
    "consolidate": _consolidate,
    "aggregate": _aggregate,
    "recompute": _recompute,
    "topk": _topk,
    "bulkjoin": _bulk_join,
}
