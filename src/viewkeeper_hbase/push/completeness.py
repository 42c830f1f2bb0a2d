"""Completeness of push: whether everything has been pushed that HBase had acknowledged at the time of the request.

    1  every connected region server reports its clock and the current length of each of its WALs: every write that was
       acknowledged to its writer is in these bytes (`WalMarks`)
    2  one server lists the peer's queues, as ZooKeeper has them: all servers' WALs that are not shipped completely, and
       the position up to which they are shipped; each server reports its own queue as soon as the lengths of step 1
       are shipped, or after a timeout
    3  push is complete if every live server has answered, no queue belongs to a dead or unknown server or was claimed
       from one, and each WAL of step 1, or a newer one of its group, is in a queue and shipped up to the length it had,
       older WALs of its server completely

The parts of step 2 may be of different times, all after step 1. What a live server had acknowledged at step 1 is
in its own queue, which it reports itself. What a server that died earlier had acknowledged is in a queue of the
list, under whatever name, until it is shipped; a list without such a queue, made at any later time, shows that it
was shipped.

A position advances when the receiver has acknowledged the bytes before it, which it does when they are in the
spool. While step 3 fails, steps 2 and 3 are repeated for a while: shipping takes some milliseconds. A dead
server's queue may take minutes to be claimed.

One condition never resolves, so it is checked only now and then: a WAL in a queue whose file was deleted. Its
changes are lost, so every table is compared with its table image once. HBase ships nothing behind such a WAL
until a new peer is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WalLengths = Mapping[str, Mapping[str, int]]
"""By region server and WAL, the WAL's length."""


@dataclass(frozen=True)
class WalMarks:
    """The region servers' answers to step 1. `clock` is the most advanced of their clocks, in milliseconds; None if
    not all servers reported one."""

    marks: WalLengths
    clock: int | None = None


@dataclass(frozen=True)
class QueuedWal:
    """A WAL in a queue of the peer, shipped up to a position."""

    server: str
    queue: str
    wal: str
    position: int


@dataclass(frozen=True)
class QueueListing:
    """The queues and the live servers at one time."""

    live_servers: frozenset[str]
    queued_wals: tuple[QueuedWal, ...]


@dataclass(frozen=True)
class Completeness:
    """The result of a check: everything has been pushed, or the reason why this is not known."""

    complete: bool
    reason: str = ""
    lost: tuple[str, ...] = ()
    """WALs in a queue whose files are gone: HBase waits for them for ever, and their changes are lost."""


@dataclass(frozen=True)
class MissingChanges:
    """A reason why push is not known to be complete. `is_shipping` means that the missing bytes are being shipped."""

    text: str
    is_shipping: bool = False


_CLOCK = "clock"


def read_marks(text: str) -> tuple[dict[str, int], int | None]:
    """Parse an answer to step 1: WAL lengths, and the clock, which an older endpoint does not report."""
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines())
    clock = lines.pop(_CLOCK, None)
    return {wal: int(length) for wal, length in lines.items()}, None if clock is None else int(clock)


def read_listing(text: str) -> QueueListing:
    """Parse an answer to step 2."""
    live, queued = set(), []
    for line in text.splitlines():
        kind, *values = line.split(" ")
        if kind == "live":
            live.add(values[0])
        elif kind == "queue":
            queued.append(QueuedWal(values[0], values[1], values[2], int(values[3])))
    return QueueListing(frozenset(live), tuple(queued))


def update_listing(listing: QueueListing, own_listings: Sequence[QueueListing]) -> QueueListing:
    """Replace the queues of a listing by those that servers reported of themselves afterwards."""
    reported = [wal for own in own_listings for wal in own.queued_wals]
    replaced = {(wal.server, wal.queue) for wal in reported}
    return QueueListing(
        listing.live_servers,
        (*(wal for wal in listing.queued_wals if (wal.server, wal.queue) not in replaced), *reported),
    )


def read_lost(text: str) -> tuple[str, ...]:
    """Parse the answer to question "L": the WALs whose files are gone."""
    return tuple(sorted(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("lost ")))


def find_missing(peer: str, marks: WalLengths, listing: QueueListing) -> MissingChanges | None:
    """Do step 3: return the first reason why push is not known to be complete, or None."""
    unconnected = sorted(listing.live_servers - set(marks))
    if unconnected:
        return MissingChanges(f"region server {unconnected[0]} is not connected")
    for queued in listing.queued_wals:
        if queued.queue != peer:
            return MissingChanges(f"WALs of a region server that is gone are being shipped ({queued.queue})")
        if queued.server not in marks:
            return MissingChanges(f"the WALs of region server {queued.server}, which is gone, wait to be claimed")
        lengths = marks[queued.server]
        if queued.wal in lengths:
            if queued.position < lengths[queued.wal]:
                return MissingChanges(
                    f"{queued.server} has shipped {queued.position} of {lengths[queued.wal]} bytes of a WAL",
                    is_shipping=True,
                )
        elif not _is_newer(queued.wal, lengths):
            return MissingChanges(f"{queued.server} has an older WAL to ship", is_shipping=True)
    queued_groups = {(queued.server, _wal_group(queued.wal)) for queued in listing.queued_wals}
    for server, lengths in marks.items():
        if missing := [wal for wal in lengths if (server, _wal_group(wal)) not in queued_groups]:
            return MissingChanges(f"the WAL {missing[0]} of {server} is in no queue of the peer")
    return None


def _is_newer(wal: str, lengths: Mapping[str, int]) -> bool:
    """Return whether a WAL was begun after the lengths were reported: its name ends with the time when it was begun."""
    begun = wal.rpartition(".")[2]
    begun_before = [int(name.rpartition(".")[2]) for name in lengths if _wal_group(name) == _wal_group(wal)]
    return bool(begun_before) and begun.isdigit() and int(begun) > max(begun_before)


def _wal_group(wal: str) -> str:
    """Return the group of a WAL. A server may write several groups in parallel; the WALs of one group follow one
    another."""
    return wal.rpartition(".")[0]
