"""The manifest: which runs make up the state. What it does not list does not count.

It is part of the batch record, so state and views change together. For each slot (an operator's arrangement) it lists
the runs, oldest first. A batch appends runs, a merge replaces some by one, dropping a view removes slots. Files that
no manifest entry names are garbage and are collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from viewkeeper.state.run_file import RunEntry


@dataclass(frozen=True)
class Manifest:
    """Slot → its runs, oldest first. `fingerprint` names what hashes and expressions were computed with."""

    runs: Mapping[str, tuple[RunEntry, ...]] = field(default_factory=dict)
    fingerprint: str = ""
    json_cache: dict[str, tuple[tuple[RunEntry, ...], list[Any]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Slot → its runs as JSON, and the runs that this was made of: a batch changes few of those before it."""

    def with_entries(self, entries: Iterable[RunEntry]) -> Manifest:
        runs = dict(self.runs)
        for entry in entries:
            runs[entry.slot] = (*runs.get(entry.slot, ()), entry)
        return Manifest(runs, self.fingerprint, self.json_cache)

    def with_replaced(self, slot: str, old: Iterable[RunEntry], new: Iterable[RunEntry]) -> Manifest:
        """The slot with some runs merged into others, which take the place of the first of them."""
        gone = set(old)
        kept = [e for e in self.runs.get(slot, ()) if e not in gone]
        place = next((i for i, e in enumerate(self.runs.get(slot, ())) if e in gone), len(kept))
        return Manifest({**self.runs, slot: (*kept[:place], *new, *kept[place:])}, self.fingerprint, self.json_cache)

    def restricted_to(self, slots: Set[str]) -> Manifest:
        gone = self.runs.keys() - slots
        if not gone:
            return self
        return Manifest({s: r for s, r in self.runs.items() if s not in gone}, self.fingerprint, self.json_cache)

    def files(self) -> frozenset[str]:
        return self._files

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(e.file for runs in self.runs.values() for e in runs)

    def to_json(self) -> dict[str, Any]:
        if len(self.json_cache) > 2 * len(self.runs):  # views come and go
            self.json_cache.clear()
        return {"fingerprint": self.fingerprint, "runs": {s: self._runs_json(s, r) for s, r in self.runs.items()}}

    def _runs_json(self, slot: str, runs: tuple[RunEntry, ...]) -> list[Any]:
        known = self.json_cache.get(slot)
        if known is None or known[0] is not runs:
            known = self.json_cache[slot] = runs, [e.to_json() for e in runs]
        return known[1]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        runs = {slot: tuple(RunEntry.from_json(e) for e in runs) for slot, runs in data["runs"].items()}
        return Manifest(runs, data["fingerprint"])


def files_of(manifests: Iterable[Manifest]) -> frozenset[str]:
    return frozenset().union(*(m.files() for m in manifests))
