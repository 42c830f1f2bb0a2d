"""Merging: an arrangement stays a short list of runs.

Runs merge like an LSM tree, and merging consolidates. A merge is a manifest change: the merged run is written beside
the old ones, listed by the next batch in their place, and the old files go when no published manifest names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from viewkeeper.commit import crash
from viewkeeper.commit.state import State
from viewkeeper.operators import aggregate
from viewkeeper.operators.arrangement import Run, choose_merges, merge
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.runs import RunEntry
from viewkeeper.plan.dataflow import Aggregate, Operator
from viewkeeper.plan.flow import Flow


def merge_runs(duck: Duck, flow: Flow, state: State, batch: int, slots: Iterable[str], durable: bool) -> None:
    """Merge what has too many runs; the state's manifest then lists the merged ones."""
    merged: dict[str, Run] = {}
    replaced: dict[str, list[RunEntry]] = {}
    for slot in slots:
        entries = state.manifest.runs.get(slot, ())
        newest = choose_merges([e.rows for e in entries])
        if newest:
            runs = state.arrangement(slot).runs[-newest:]
            merged[slot] = _merged(duck, flow.operators[slot.split("/")[0]], slot, runs)
            replaced[slot] = list(entries[-newest:])
    if not merged:
        return
    crash.point("merge.write.before")
    written = {e.slot: e for e in state.write(batch, merged, durable)}
    crash.point("merge.write.after")
    manifest = state.manifest
    for slot, gone in replaced.items():
        manifest = manifest.replaced(slot, gone, [written[slot]])
    state.adopt(manifest)


def _merged(duck: Duck, operator: Operator, slot: str, runs: Sequence[Run]) -> Run:
    if isinstance(operator, Aggregate):
        return aggregate.additive_merge(duck, operator.spec, int(slot.split("/")[1]), runs)
    return merge(duck, runs)
