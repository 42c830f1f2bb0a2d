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

from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.context import LocalContext
from viewkeeper.runtime.inputs import InputSource, MemoryRows
from viewkeeper.runtime.local.scheduler import run_operators
from viewkeeper.runtime.spark import worker_cache
from viewkeeper.runtime.spark.worker_cache import DataflowHandle, TaskContext
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


TableLocations = Sequence[tuple[int, int]]
"""Where tables lie: first byte and length of each."""
_LOCATION = struct.Struct("<QQ")


def create_unnamed_file() -> int:
    """A file that goes with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("viewkeeper", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(
    connection: Connection,
    file: int,
    tables: Mapping[str, Sequence[pa.Table]],
    message: Callable[[Mapping[str, TableLocations]], Any],
) -> None:
    """Write tables and the message that is made of where they lie; what the file held before is gone."""
    places, end = write_tables(file, tables)
    text = pickle.dumps(message(places), protocol=5)
    _write(file, text, end)
    connection.send_bytes(_LOCATION.pack(end, len(text)))


def receive(connection: Connection, file: int) -> Any:
    """The message that was sent."""
    start, length = _LOCATION.unpack(connection.recv_bytes())
    return pickle.loads(_read(file, length, start))


def write_tables(file: int, tables: Mapping[str, Sequence[pa.Table]]) -> tuple[dict[str, TableLocations], int]:
    """Where these tables now lie in the file, and where they end."""
    found: dict[str, TableLocations] = {}
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


def read_tables(file: int, locations: TableLocations) -> list[pa.Table]:
    """The tables that lie there."""
    return [pa.ipc.open_stream(_read(file, length, at)).read_all() for at, length in locations]


def _write(file: int, data: Any, offset: int) -> int:
    done, view = 0, memoryview(data)
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)
    return len(view)


def _read(file: int, length: int, offset: int) -> bytes:
    found = os.pread(file, length, offset)
    while len(found) < length:
        more = os.pread(file, length - len(found), offset + len(found))
        if not more:
            raise EOFError("a file of parcels ends too early")
        found += more
    return found


READY = b"ready"
_POLL_INTERVAL = 10.0
"""Seconds without work after which it looks whether files that it has mapped were removed."""
_IDLE_TIMEOUT = 900.0
"""Seconds without work after which it ends."""

RequestKey = tuple[int, str]
"""A work's batch and its flow: an answer says which it is of."""


@dataclass(frozen=True)
class WorkerRequest:
    """A part of batch `number`. `flow`: None if the partner has it under its token; `keeps`: slots whose runs are
    written; `given`: where the rows of each input lie."""

    number: int
    token: str
    active: frozenset[str]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    keep_slots: frozenset[str]
    directory: str
    durable: bool
    memory: int
    is_warm_up: bool = False
    dataflow: Dataflow | None = None
    dropped_tokens: Sequence[str] = ()
    """Tokens of flows that it is not asked for again."""
    inputs: Mapping[str, TableLocations] = field(default_factory=dict)

    @property
    def key(self) -> RequestKey:
        return self.number, self.token


@dataclass(frozen=True)
class WorkerResponse:
    """What came of a work. `reached`: where the rows of each view lie; `error`: why nothing did."""

    request_key: RequestKey
    deltas: Mapping[str, TableLocations] = field(default_factory=dict)
    entries: Sequence[RunEntry] = ()
    operator_seconds: Mapping[str, float] = field(default_factory=dict)
    output_rows: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """From when it had its work until it was done."""
    error: str | None = None


@dataclass(frozen=True)
class _LocalHandle:
    """A flow as a plan's handle has it."""

    value: Dataflow


def main(socket_fd: int, request_fd: int, response_fd: int) -> None:
    """Work until the maintainer is gone. Descriptors: of the socket, and of the files that rows come in and go in."""
    with Connection(socket_fd) as connection:
        flows: dict[str, Dataflow] = {}
        try:
            connection.send_bytes(READY)
            while _wait_for_request(connection):
                _serve_request(connection, receive(connection, request_fd), flows, request_fd, response_fd)
        except (EOFError, OSError):
            return


def _wait_for_request(connection: Connection) -> bool:
    """Whether work came, which is waited for."""
    ends = time.monotonic() + _IDLE_TIMEOUT
    while not connection.poll(_POLL_INTERVAL):
        worker_cache.close_removed_runs()
        if time.monotonic() > ends:
            return False
    return True


def _serve_request(
    connection: Connection, request: WorkerRequest, dataflows: dict[str, Dataflow], request_fd: int, response_fd: int
) -> None:
    started = time.perf_counter()
    try:
        for token in request.dropped_tokens:
            dataflows.pop(token, None)
        if request.dataflow is not None:
            dataflows[request.token] = request.dataflow
        given = {name: read_tables(request_fd, places) for name, places in request.inputs.items()}
        reached, entries, site = _run_request(request, dataflows[request.token], given)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        send(connection, response_fd, {}, lambda _: WorkerResponse(request.key, error=said))
        return
    figures = (site.operator_seconds, site.output_rows, site.skipped)
    send(
        connection,
        response_fd,
        {} if request.is_warm_up else reached,
        lambda places: WorkerResponse(request.key, places, entries, *figures, time.perf_counter() - started),
    )


def _run_request(
    request: WorkerRequest, dataflow: Dataflow, tables: Mapping[str, Sequence[pa.Table]]
) -> tuple[dict[str, list[pa.Table]], list[RunEntry], LocalContext]:
    """What reached each view, the runs that were written, and the site with its figures."""
    errand = TaskContext(
        dataflow_handle=DataflowHandle(request.token, _LocalHandle(dataflow)),
        active=request.active,
        manifest=request.manifest,
        directory=request.directory,
        number=request.number,
        durable=request.durable,
        memory=request.memory,
        threads=1,
    )
    here = worker_cache.cache_for(errand)
    given: dict[str, InputSource] = {name: MemoryRows(pa.concat_tables(found)) for name, found in tables.items()}
    site = LocalContext(
        here.pool.use_primary(1), dataflow, partial(here.arrangement, errand), request.active, here.memory
    )
    reached = run_operators(site, given)
    entries = here.write(errand, "p", {slot: run for slot, run in site.new_runs.items() if slot in request.keep_slots})
    return {str(view): found for view, found in reached.items()}, entries, site
