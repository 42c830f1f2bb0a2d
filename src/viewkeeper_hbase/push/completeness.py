"""Whether everything has come that HBase had acknowledged when it was asked.

    1  every region server that is connected says what its clock shows and how long each of its WALs is now: what its
       writers had been told is done is in these bytes (`Asked`)
    2  one of them lists the peer's queues, as ZooKeeper has them: all servers' WALs that are not shipped whole, and up
       to which position they are; each says the same of its own queue as soon as that has what step 1 said, or when it
       has waited for some time
    3  all has come if every live server was asked, no queue is a dead or unknown server's or claimed from one, and each
       WAL of step 1, or one that was begun after it, is in a queue and shipped up to the length it had, the older ones
       of its server wholly

The parts of step 2 may be of different times, all after step 1. What a server that lives had acknowledged at step 1 is
in its own queue, of which it speaks itself; what one had that died before is in a queue of the list, under whatever
name, until it is shipped: a list without such a queue shows that it was, whenever it is made.

A position is noted when the receiver has acknowledged what lies before it, which it does when that is in the spool.
While step 3 cannot be shown it is asked again, for a while: shipping takes some milliseconds; a dead server's queue may
take minutes to be claimed.

What will never be shown is asked for then, now and again: a WAL in a queue whose file somebody has deleted. What was
in it is lost, so every table is compared with its image once. HBase ships nothing behind it, until a new peer is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WalLengths = Mapping[str, Mapping[str, int]]
"""By region server: by WAL, its length."""


@dataclass(frozen=True)
class WalMarks:
    """What the region servers said in step 1. `clock`: that of the one which is furthest ahead, in milliseconds; None
    if not all of them told."""

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
    """The queues, and the servers that live, at one time."""

    live_servers: frozenset[str]
    queued_wals: tuple[QueuedWal, ...]


@dataclass(frozen=True)
class Completeness:
    """The outcome: everything has come, or why that is not known."""

    complete: bool
    reason: str = ""
    lost: tuple[str, ...] = ()
    """WALs that wait in a queue and whose files are gone: HBase waits for them for ever, and nobody will see them."""


@dataclass(frozen=True)
class MissingChanges:
    """What is not known to have come. `soon`: it is being shipped, and takes no longer than that."""

    text: str
    is_shipping: bool = False


_CLOCK = "clock"


def read_marks(text: str) -> tuple[dict[str, int], int | None]:
    """The lines of an answer to step 1: lengths, and the clock, which an older endpoint does not tell."""
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines())
    clock = lines.pop(_CLOCK, None)
    return {wal: int(length) for wal, length in lines.items()}, None if clock is None else int(clock)


def read_listing(text: str) -> QueueListing:
    """The lines of an answer to step 2."""
    live, queued = set(), []
    for line in text.splitlines():
        what, *rest = line.split(" ")
        if what == "live":
            live.add(rest[0])
        elif what == "queue":
            queued.append(QueuedWal(rest[0], rest[1], rest[2], int(rest[3])))
    return QueueListing(frozenset(live), tuple(queued))


def update_listing(listing: QueueListing, own_listings: Sequence[QueueListing]) -> QueueListing:
    """A listing with what servers said of their own queues after it."""
    told = [one for each in own_listings for one in each.queued_wals]
    known = {(one.server, one.queue) for one in told}
    return QueueListing(
        listing.live_servers, (*(one for one in listing.queued_wals if (one.server, one.queue) not in known), *told)
    )


def read_lost(text: str) -> tuple[str, ...]:
    """The WALs of an answer to the question for lost ones."""
    return tuple(sorted(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("lost ")))


def find_missing(peer: str, marks: WalLengths, listing: QueueListing) -> MissingChanges | None:
    """Step 3: what is not known to have come; None if everything is."""
    unasked = sorted(listing.live_servers - set(marks))
    if unasked:
        return MissingChanges(f"region server {unasked[0]} is not connected")
    for one in listing.queued_wals:
        if one.queue != peer:
            return MissingChanges(f"WALs of a region server that is gone are being shipped ({one.queue})")
        if one.server not in marks:
            return MissingChanges(f"the WALs of region server {one.server}, which is gone, wait to be claimed")
        lengths = marks[one.server]
        if one.wal in lengths:
            if one.position < lengths[one.wal]:
                return MissingChanges(
                    f"{one.server} has shipped {one.position} of {lengths[one.wal]} bytes of a WAL", is_shipping=True
                )
        elif not _is_newer(one.wal, lengths):
            return MissingChanges(f"{one.server} has an older WAL to ship", is_shipping=True)
    queued = {(one.server, _wal_group(one.wal)) for one in listing.queued_wals}
    for server, lengths in marks.items():
        if lacking := [wal for wal in lengths if (server, _wal_group(wal)) not in queued]:
            return MissingChanges(f"the WAL {lacking[0]} of {server} is in no queue of the peer")
    return None


def _is_newer(wal: str, lengths: Mapping[str, int]) -> bool:
    """Whether a WAL was begun after the lengths were taken: its name is its group's with the time it was begun."""
    begun = wal.rpartition(".")[2]
    known = [int(name.rpartition(".")[2]) for name in lengths if _wal_group(name) == _wal_group(wal)]
    return bool(known) and begun.isdigit() and int(begun) > max(known)


def _wal_group(wal: str) -> str:
    """Several WALs may be written side by side; those of a group follow one another."""
    return wal.rpartition(".")[0]
