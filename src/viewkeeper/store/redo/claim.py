"""A batch becomes visible, in a store that changes only single rows atomically.

    3a  everything that will be written is a durable file: the redo
    3b  the batch is claimed: the ledger is replaced, compared first, by one with {number, owner, digest of the redo}.
        From here on nobody writes other rows for this batch
    3c  the rows, marked with the batch's number. Done twice they are the same
    4   the ledger says that the batch is published; catalog and batch record change in the same step

Before 3b nothing has happened. After it the batch will happen: whoever maintains next replays the claimed redo, and
nothing else. A maintainer that slept through that writes rows that are there already, and its step 4 fails.
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
    """Who writes the rows of batch `number`, and where its redo is: nobody else may write others for it."""

    number: int
    owner: str
    file: str
    digest: str
    changes_catalog: bool
    """It changes the catalog too, so nobody else may until it is published."""


@dataclass(frozen=True)
class LedgerState:
    """What a ledger says: the published batch, the version of the catalog that counts, and who has claimed the next."""

    published: int = 0
    catalog: int = 0
    claim: Claim | None = None


S = TypeVar("S", bound=LedgerState)


class Ledger(Protocol[S]):
    """The one record that is replaced by comparing it first, and what is written in the same step."""

    location: str
    """Whose it is, for who is told."""

    def replace_state(
        self,
        change: Callable[[S], S | None],
        batch_record: Mapping[str, Any] | None = None,
        catalog_changes: Mapping[str, Any] | None = None,
    ) -> S:
        """Replace the record by `change(record)`, with these others; None leaves all as it is. What it says then."""


def claim_batch(
    ledger: Ledger[S], directory: StateDirectory, redo: Redo, owner: str, catalog_version: int
) -> Claim | None:
    """Steps 3a and 3b. None if the catalog is not that version any more: the redo must be made anew."""
    name, digest = redo_file.write_redo(directory, redo)
    mine = Claim(redo.number, owner, name, digest, redo.catalog_changes is not None)

    def change(standing: S) -> S | None:
        check_next_batch(ledger.location, standing, redo.number)
        if redo.catalog_changes is not None and standing.catalog != catalog_version:
            return None
        return replace(standing, claim=mine)

    return mine if ledger.replace_state(change).claim == mine else None


def check_next_batch(location: str, state: LedgerState, number: int) -> None:
    """MaintainerBusy unless this batch is the next, and nobody has claimed it."""
    if number != state.published + 1 or state.claim is not None:
        done = f"batch {state.published}, which is published"
        if state.claim is not None:
            done += f"; batch {state.claim.number} is claimed by {state.claim.owner}"
        raise MaintainerBusy(
            f"Batch {number} cannot follow {done}: another process maintains {location}.",
            hint="Open the database again.",
        )


def finish_batch(
    ledger: Ledger[S],
    directory: StateDirectory,
    claim: Claim,
    write: Callable[[TableRedo, int], None],
    redo: Redo | None = None,
) -> S:
    """Steps 3c and 4 of a claimed batch, by whoever claimed it or by a successor. `write` does 3c for a table.

    `redo`: who has claimed it has it yet, and need not read it. A table is a call or two to the store, however few its
    rows: several are written at the same time. What the ledger says afterwards.
    """
    redo = redo_file.read_redo(directory, claim.file, claim.digest) if redo is None else redo
    if len(redo.tables) == 1:
        write(redo.tables[0], redo.number)
        return publish_batch(ledger, redo)
    with ThreadPool(_MAX_TABLE_WRITERS, thread_name_prefix="viewkeeper-cells") as pool:
        try:
            for written in [pool.submit(write, table, redo.number) for table in redo.tables]:
                written.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return publish_batch(ledger, redo)


def publish_batch(ledger: Ledger[S], redo: Redo) -> S:
    """Step 4. A batch that is published already is no error: a successor was faster, with the same redo."""

    def change(standing: S) -> S | None:
        if standing.published >= redo.number:
            return None
        version = standing.catalog if redo.catalog_changes is None else redo.catalog_changes["version"]
        return replace(standing, published=redo.number, claim=None, catalog=version)

    return ledger.replace_state(change, redo.batch_record, redo.catalog_changes)
