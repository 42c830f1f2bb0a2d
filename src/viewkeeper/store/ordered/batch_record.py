"""The batch record in two parts, so that publishing a batch costs what it changes.

    batch         number, cut and the whole record; of its runs those that are not as the basis lists them
    batch_basis   number, and the runs of all state as the batch of that number listed them

A record lists the runs of all state, thousands with many views, and a batch changes a few. Once those that differ are
as many as a quarter, the next batch's are the basis. Both parts are written with the batch, in its transaction; a basis
that is not the one which a batch names is damage, as a wrong checksum is.
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
"""A new basis is written when more than one of so many slots differ from it."""


@dataclass(frozen=True)
class RunBasis:
    """The runs by slot, as the batch of this number listed them."""

    number: int
    runs: Mapping[str, Any]


@dataclass(frozen=True)
class EncodedBatch:
    """A batch that can be put; with it a new basis, if it needs one."""

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
    """Before the transaction: writers wait while it lasts. `basis`: the one that is written, if it is known."""
    manifest = batch.record.get("manifest")
    record, renewed = batch.record, None
    if manifest is not None:
        runs: Mapping[str, Any] = manifest["runs"]
        differing = None if basis is None else _diff_runs(basis.runs, runs)
        if basis is None or differing is None or _REBASE_FRACTION * len(differing) > len(runs):
            basis, differing = RunBasis(batch.number, runs), {}
            renewed = encode_record({"number": basis.number, "runs": runs})
        record = {**record, "manifest": {**manifest, "runs": differing, "basis": basis.number}}
    told = encode_record({"number": batch.number, "cut": batch.cut, "record": record})
    return EncodedBatch(batch.number, told, basis, renewed)


def _diff_runs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The slots whose runs are others; None: there are none any more."""
    found: dict[str, Any] = {slot: runs for slot, runs in after.items() if before.get(slot) != runs}
    return found | dict.fromkeys(before.keys() - after.keys())


def read_batch(meta: OrderedMap) -> Batch | None:
    """The published batch; CorruptState if a part of it is damaged."""
    data = read_record(meta, _BATCH)
    if data is None:
        return None
    manifest = data["record"].get("manifest")
    if manifest is not None and "basis" in manifest:  # one of version 0.1 has all its runs
        basis = read_record(meta, _BASIS)
        if basis is None or basis["number"] != manifest["basis"]:
            raise CorruptState(
                "The record 'batch_basis' of the database is not the one that its batch was written with."
            )
        runs = {s: r for s, r in (basis["runs"] | manifest["runs"]).items() if r is not None}
        del manifest["basis"]
        manifest["runs"] = runs
    return Batch(data["number"], data["cut"], data["record"])
