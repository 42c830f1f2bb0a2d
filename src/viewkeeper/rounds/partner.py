"""A process that runs a part of a batch's operators, beside the one that maintains.

    maintainer  ── Work: the part's flow (once), its runs, the changes ──▶  partner
                ◀── Done: what reached its views, the runs that it wrote ──

Python runs one thread at a time, so the operators of small batches need processes to use several cores. A partner keeps
from one batch to the next what a worker of Spark does (`worker`): flows, statements, runs that it has mapped. It opens
no store and decides nothing: what it writes is listed by the maintainer's batch, or is garbage. If it fails, for
whatever reason, the maintainer runs the whole batch, and then knows whose error it is.

A *rehearsal* is work whose outcome nobody waits for: what is needed next time is mapped and prepared afterwards.

It ends when its socket's other end is closed, however the maintainer ended, and when it has had nothing to do for long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import pyarrow as pa

from viewkeeper.operators.runs import RunEntry
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds import worker
from viewkeeper.rounds.driver import run_in_driver
from viewkeeper.rounds.given import Given, Rows
from viewkeeper.rounds.parcels import Places, receive, send, taken
from viewkeeper.rounds.site import Site
from viewkeeper.rounds.worker import Errand, Plan

READY = b"ready"
_LOOKS = 10.0
"""Seconds without work after which it looks whether files that it has mapped were removed."""
_LONGEST = 900.0
"""Seconds without work after which it ends."""

Name = tuple[int, str]
"""A work's batch and its flow: an answer says which it is of."""


@dataclass(frozen=True)
class Work:
    """A part of batch `number`. `flow`: None if the partner has it under its token; `keeps`: slots whose runs are
    written; `given`: where the rows of each input lie."""

    number: int
    token: str
    active: frozenset[str]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    keeps: frozenset[str]
    directory: str
    durable: bool
    memory: int
    rehearses: bool = False
    flow: Flow | None = None
    forget: Sequence[str] = ()
    """Tokens of flows that it is not asked for again."""
    given: Mapping[str, Places] = field(default_factory=dict)

    @property
    def name(self) -> Name:
        return self.number, self.token


@dataclass(frozen=True)
class Done:
    """What came of a work. `reached`: where the rows of each view lie; `error`: why nothing did."""

    work: Name
    reached: Mapping[str, Places] = field(default_factory=dict)
    entries: Sequence[RunEntry] = ()
    clock: Mapping[str, float] = field(default_factory=dict)
    made: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """From when it had its work until it was done."""
    error: str | None = None


@dataclass(frozen=True)
class _Here:
    """A flow as a plan's handle has it."""

    value: Flow


def main(talk: int, there: int, back: int) -> None:
    """Work until the maintainer is gone. Descriptors: of the socket, and of the files that rows come in and go in."""
    with Connection(talk) as connection:
        flows: dict[str, Flow] = {}
        try:
            connection.send_bytes(READY)
            while _is_wanted(connection):
                _serve(connection, receive(connection, there), flows, there, back)
        except (EOFError, OSError):
            return


def _is_wanted(connection: Connection) -> bool:
    """Whether work came, which is waited for."""
    ends = time.monotonic() + _LONGEST
    while not connection.poll(_LOOKS):
        worker.let_go_of_removed()
        if time.monotonic() > ends:
            return False
    return True


def _serve(connection: Connection, work: Work, flows: dict[str, Flow], there: int, back: int) -> None:
    started = time.perf_counter()
    try:
        for token in work.forget:
            flows.pop(token, None)
        if work.flow is not None:
            flows[work.token] = work.flow
        given = {name: taken(there, places) for name, places in work.given.items()}
        reached, entries, site = _run(work, flows[work.token], given)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        send(connection, back, {}, lambda _: Done(work.name, error=said))
        return
    figures = (site.clock, site.made, site.skipped)
    send(
        connection,
        back,
        {} if work.rehearses else reached,
        lambda places: Done(work.name, places, entries, *figures, time.perf_counter() - started),
    )


def _run(
    work: Work, flow: Flow, tables: Mapping[str, Sequence[pa.Table]]
) -> tuple[dict[str, list[pa.Table]], list[RunEntry], Site]:
    """What reached each view, the runs that were written, and the site with its figures."""
    errand = Errand(
        plan=Plan(work.token, _Here(flow)),
        active=work.active,
        manifest=work.manifest,
        directory=work.directory,
        number=work.number,
        durable=work.durable,
        memory=work.memory,
        threads=1,
    )
    here = worker.at(errand)
    given: dict[str, Given] = {name: Rows(pa.concat_tables(found)) for name, found in tables.items()}
    site = Site(here.crew.alone(1), flow, partial(here.arrangement, errand), work.active, here.memory)
    reached = run_in_driver(site, given)
    entries = here.write(errand, "p", {slot: run for slot, run in site.added.items() if slot in work.keeps})
    return {str(view): found for view, found in reached.items()}, entries, site
