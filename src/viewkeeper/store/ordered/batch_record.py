"""The batch record in two parts, so that the cost of publishing a batch depends on its changes.

    batch         number, cut and the record, in which the manifest lists only slots that differ from the basis
    batch_basis   a number, and the runs of all slots as listed by the batch of that number

A record lists the runs of the whole state, thousands with many views, and a batch changes few of them. If more than a
quarter of the slots differ, the batch writes a new basis. Both parts are written in the batch's transaction; a basis
that is not the one named by the batch counts as damage, like a wrong checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.errors import CorruptState
from viewkeeper.store.contract.commits import Batch
from viewkeeper.store.ordered.maps import OrderedMap
from viewkeeper.store.ordered.metadata import BATCH_NUMBER, encode_record, put_counter, read_record

_BATCH = b"batch"
_BASIS = b"batch_basis"
_REBASE_FRACTION = 4
"""A new basis is written when more than one in this many slots differ from it."""


@dataclass(frozen=True)
class RunBasis:
    """The runs of each slot, as the batch of this number listed them."""

    number: int
    runs: Mapping[str, Any]


@dataclass(frozen=True)
class EncodedBatch:
    """An encoded batch, and a new basis if one is needed."""

    number: int
    batch: bytes
    basis: RunBasis | None
    new_basis: bytes | None

    def put(self, meta: OrderedMap) -> None:
        meta.put(_BATCH, self.batch)
        if self.new_basis is not None:
            meta.put(_BASIS, self.new_basis)
        put_counter(meta, BATCH_NUMBER, self.number)


def encode_batch(batch: Batch, basis: RunBasis | None) -> EncodedBatch:
    """Encode a batch. It is done before the transaction, because other writers wait while that lasts. `basis`: the
    stored basis, if it is known."""
    manifest = batch.record.get("manifest")
    record, new_basis = batch.record, None
    if manifest is not None:
        runs: Mapping[str, Any] = manifest["runs"]
        differing = None if basis is None else _diff_runs(basis.runs, runs)
        if basis is None or differing is None or _REBASE_FRACTION * len(differing) > len(runs):
            basis, differing = RunBasis(batch.number, runs), {}
            new_basis = encode_record({"number": basis.number, "runs": runs})
        record = {**record, "manifest": {**manifest, "runs": differing, "basis": basis.number}}
    encoded = encode_record({"number": batch.number, "cut": batch.cut, "record": record})
    return EncodedBatch(batch.number, encoded, basis, new_basis)


def _diff_runs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slots whose runs differ; None stands for a slot that was removed."""
    found: dict[str, Any] = {slot: runs for slot, runs in after.items() if before.get(slot) != runs}
    return found | dict.fromkeys(before.keys() - after.keys())


def read_batch(meta: OrderedMap) -> Batch | None:
    """Return the published batch. Raise CorruptState if a part of it is damaged."""
    data = read_record(meta, _BATCH)
    if data is None:
        return None
    manifest = data["record"].get("manifest")
    if manifest is not None and "basis" in manifest:  # a record of version 0.1 lists all runs
        basis = read_record(meta, _BASIS)
        if basis is None or basis["number"] != manifest["basis"]:
            raise CorruptState(
                "The record 'batch_basis' of the database is not the one that its batch was written with."
            )
        runs = {s: r for s, r in (basis["runs"] | manifest["runs"]).items() if r is not None}
        del manifest["basis"]
        manifest["runs"] = runs
    return Batch(data["number"], data["cut"], data["record"])
