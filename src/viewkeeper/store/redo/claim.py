"""Claim, write and publish a batch in a store that changes only single rows atomically.

    3a  all writes of the batch are in a durable file: the redo file
    3b  the batch is claimed: a compare-and-set puts {number, owner, digest of the redo file} into the ledger.
        From here on no process writes other rows for this batch
    3c  the rows are written, marked with the batch's number. Writing them twice has the same result
    4   the ledger records that the batch is published; catalog and batch record change in the same step

Before 3b nothing has happened. After 3b the batch will happen: the next maintainer replays the claimed redo file, and
nothing else. A maintainer that was suspended meanwhile writes rows that already exist, and its step 4 fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.threads import ThreadPool
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.redo import redo_file
from viewkeeper.store.redo.redo_file import Redo, TableRedo

_MAX_TABLE_WRITERS = 4


@dataclass(frozen=True)
class Claim:
    """The right to write the rows of batch `number`, and its redo file. No other process may write other rows for the
    batch."""

    number: int
    owner: str
    file: str
    digest: str
    changes_catalog: bool
    """Whether the batch changes the catalog; then no other process may change it before the batch is published."""


@dataclass(frozen=True)
class LedgerState:
    """The content of a ledger: the published batch, the current version of the catalog, and the claim of the next
    batch."""

    published: int = 0
    catalog: int = 0
    claim: Claim | None = None


S = TypeVar("S", bound=LedgerState)


class Ledger(Protocol[S]):
    """The record that is replaced by compare-and-set, with the records that are written in the same step."""

    location: str
    """Name of the database, for error messages."""

    def replace_state(
        self,
        change: Callable[[S], S | None],
        batch_record: Mapping[str, Any] | None = None,
        catalog_changes: Mapping[str, Any] | None = None,
    ) -> S:
        """Replace the record by `change(record)`, together with the other records, and return the resulting state. If
        `change` returns None, nothing is written."""


def claim_batch(
    ledger: Ledger[S], directory: StateDirectory, redo: Redo, owner: str, catalog_version: int
) -> Claim | None:
    """Do steps 3a and 3b. Return None if the catalog has another version by now: the redo file must be built again."""
    name, digest = redo_file.write_redo(directory, redo)
    claim = Claim(redo.number, owner, name, digest, redo.catalog_changes is not None)

    def change(state: S) -> S | None:
        check_next_batch(ledger.location, state, redo.number)
        if redo.catalog_changes is not None and state.catalog != catalog_version:
            return None
        return replace(state, claim=claim)

    return claim if ledger.replace_state(change).claim == claim else None


def check_next_batch(location: str, state: LedgerState, number: int) -> None:
    """Raise MaintainerBusy unless this batch is the next one and is not claimed."""
    if number != state.published + 1 or state.claim is not None:
        predecessor = f"batch {state.published}, which is published"
        if state.claim is not None:
            predecessor += f"; batch {state.claim.number} is claimed by {state.claim.owner}"
        raise MaintainerBusy(
            f"Batch {number} cannot follow {predecessor}: another process maintains {location}.",
            hint="Open the database again.",
        )


def finish_batch(
    ledger: Ledger[S],
    directory: StateDirectory,
    claim: Claim,
    write: Callable[[TableRedo, int], None],
    redo: Redo | None = None,
) -> S:
    """Do steps 3c and 4 of a claimed batch, by its claimant or by a successor, and return the resulting ledger state.

    `write` does step 3c for a table. `redo`: the claimant still has it in memory and need not read the file. Each table
    takes a call or two to the store, however few rows it has, so several tables are written in parallel.
    """
    redo = redo_file.read_redo(directory, claim.file, claim.digest) if redo is None else redo
    if len(redo.tables) == 1:
        write(redo.tables[0], redo.number)
        return publish_batch(ledger, redo)
    with ThreadPool(_MAX_TABLE_WRITERS, thread_name_prefix="viewkeeper-cells") as pool:
        try:
            for future in [pool.submit(write, table, redo.number) for table in redo.tables]:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return publish_batch(ledger, redo)


def publish_batch(ledger: Ledger[S], redo: Redo) -> S:
    """Do step 4. If the batch is published already, that is no error: a successor was faster, with the same redo
    file."""

    def change(state: S) -> S | None:
        if state.published >= redo.number:
            return None
        version = state.catalog if redo.catalog_changes is None else redo.catalog_changes["version"]
        return replace(state, published=redo.number, claim=None, catalog=version)

    return ledger.replace_state(change, redo.batch_record, redo.catalog_changes)
