"""The manifest lists the runs that make up the state; a run that it does not list is not part of the state.

The manifest is part of the batch record, so state and views change in one atomic step. For each state slot (one
arrangement of an operator) it lists the runs, oldest first. A batch appends runs, a compaction replaces several runs
with one, and dropping a view removes slots. A file that no manifest entry names is garbage and is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from viewkeeper.state.run_file import RunEntry


@dataclass(frozen=True)
class Manifest:
    """Runs of each state slot, oldest first. `fingerprint` identifies the versions of the hash and of the expressions
    that the state was computed with."""

    runs: Mapping[str, tuple[RunEntry, ...]] = field(default_factory=dict)
    fingerprint: str = ""
    json_cache: dict[str, tuple[tuple[RunEntry, ...], list[Any]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Slot → (its runs, the same runs as JSON). A batch changes few slots, so most of the JSON is reused."""

    def with_entries(self, entries: Iterable[RunEntry]) -> Manifest:
        runs = dict(self.runs)
        for entry in entries:
            runs[entry.slot] = (*runs.get(entry.slot, ()), entry)
        return Manifest(runs, self.fingerprint, self.json_cache)

    def with_replaced(self, slot: str, old: Iterable[RunEntry], new: Iterable[RunEntry]) -> Manifest:
        """Return the manifest with the `old` runs of a slot replaced by `new` at the position of the first old run."""
        replaced = set(old)
        remaining = [e for e in self.runs.get(slot, ()) if e not in replaced]
        position = next((i for i, e in enumerate(self.runs.get(slot, ())) if e in replaced), len(remaining))
        return Manifest(
            {**self.runs, slot: (*remaining[:position], *new, *remaining[position:])}, self.fingerprint, self.json_cache
        )

    def restricted_to(self, slots: Set[str]) -> Manifest:
        dropped = self.runs.keys() - slots
        if not dropped:
            return self
        return Manifest({s: r for s, r in self.runs.items() if s not in dropped}, self.fingerprint, self.json_cache)

    def files(self) -> frozenset[str]:
        return self._files

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(e.file for runs in self.runs.values() for e in runs)

    def to_json(self) -> dict[str, Any]:
        if len(self.json_cache) > 2 * len(self.runs):  # drop the entries of dropped views
            self.json_cache.clear()
        return {"fingerprint": self.fingerprint, "runs": {s: self._runs_json(s, r) for s, r in self.runs.items()}}

    def _runs_json(self, slot: str, runs: tuple[RunEntry, ...]) -> list[Any]:
        cached = self.json_cache.get(slot)
        if cached is None or cached[0] is not runs:
            cached = self.json_cache[slot] = runs, [e.to_json() for e in runs]
        return cached[1]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        runs = {slot: tuple(RunEntry.from_json(e) for e in runs) for slot, runs in data["runs"].items()}
        return Manifest(runs, data["fingerprint"])


def files_of(manifests: Iterable[Manifest]) -> frozenset[str]:
    return frozenset().union(*(m.files() for m in manifests))
