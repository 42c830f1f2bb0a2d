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

import os
import pickle
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.runtime.context import Site
from viewkeeper.runtime.inputs import Given, Rows
from viewkeeper.runtime.local.scheduler import run_in_driver
from viewkeeper.runtime.spark import worker_cache
from viewkeeper.runtime.spark.worker_cache import Errand, Plan
from viewkeeper.state.run_file import RunEntry

# What goes from one process to another on this machine: in a file without a name that both have open.
#
#     file    │ table │ table │ … │ a message that says where each table lies │
#     socket  where the message lies
#
# One of them writes from the file's beginning; when the other has taken what is there, the place is used again. A
# socket of the system's usual size takes a few hundred thousand bytes at a time, and each time one process waits until
# the other is woken: 18 ms for four million bytes, in a file 3. And nobody waits for a process that has stopped to
# read.
#
# Who takes rows copies them: runs that are kept would see what is written next.


Places = Sequence[tuple[int, int]]
"""Where tables lie: first byte and length of each."""
_PLACE = struct.Struct("<QQ")


def unnamed() -> int:
    """A file that goes with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("viewkeeper", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(
    connection: Connection,
    file: int,
    tables: Mapping[str, Sequence[pa.Table]],
    message: Callable[[Mapping[str, Places]], Any],
) -> None:
    """Write tables and the message that is made of where they lie; what the file held before is gone."""
    places, end = written(file, tables)
    text = pickle.dumps(message(places), protocol=5)
    _write(file, text, end)
    connection.send_bytes(_PLACE.pack(end, len(text)))


def receive(connection: Connection, file: int) -> Any:
    """The message that was sent."""
    start, length = _PLACE.unpack(connection.recv_bytes())
    return pickle.loads(_read(file, length, start))


def written(file: int, tables: Mapping[str, Sequence[pa.Table]]) -> tuple[dict[str, Places], int]:
    """Where these tables now lie in the file, and where they end."""
    found: dict[str, Places] = {}
    end = 0
    for name, each in tables.items():
        places = []
        for table in each:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            length = _write(file, sink.getvalue(), end)
            places.append((end, length))
            end += length
        found[name] = places
    return found, end


def taken(file: int, places: Places) -> list[pa.Table]:
    """The tables that lie there."""
    return [pa.ipc.open_stream(_read(file, length, at)).read_all() for at, length in places]


def _write(file: int, data: Any, at: int) -> int:
    done, view = 0, memoryview(data)
    while done < len(view):
        done += os.pwrite(file, view[done:], at + done)
    return len(view)


def _read(file: int, length: int, at: int) -> bytes:
    found = os.pread(file, length, at)
    while len(found) < length:
        more = os.pread(file, length - len(found), at + len(found))
        if not more:
            raise EOFError("a file of parcels ends too early")
        found += more
    return found


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
        worker_cache.let_go_of_removed()
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
    here = worker_cache.at(errand)
    given: dict[str, Given] = {name: Rows(pa.concat_tables(found)) for name, found in tables.items()}
    site = Site(here.crew.alone(1), flow, partial(here.arrangement, errand), work.active, here.memory)
    reached = run_in_driver(site, given)
    entries = here.write(errand, "p", {slot: run for slot, run in site.added.items() if slot in work.keeps})
    return {str(view): found for view, found in reached.items()}, entries, site
