"""A worker process: runs one view partition of a batch for the maintainer.

    maintainer  ── WorkerRequest: the dataflow (once), its runs, the changes ──▶  worker process
                ◀── WorkerResponse: deltas at the views' sinks, new runs ──

Python runs one thread at a time (GIL), so the operators of small batches need processes to use several cores. A worker
process caches between batches what a Spark worker does (`spark.worker_cache`): dataflows, statements, mapped runs. It
opens no store. The runs that it writes are listed by the maintainer's batch, or else are garbage. If it fails, the
maintainer runs the whole batch itself, and attributes the error.

A *warm-up* is a request whose result is ignored; it maps files and prepares statements for the next batch.

The process ends when the other end of its socket is closed, however the maintainer ended, and after `_IDLE_TIMEOUT`
seconds without a request.
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

# Tables are transferred between two processes of this machine in an unnamed file that both have open.
#
#     file    │ table │ table │ … │ message with the location of each table │
#     socket  location of the message
#
# The sender writes from the beginning of the file; after the receiver has read it, the file is overwritten. A socket
# buffer of the usual size takes a few hundred thousand bytes at a time, and each time one process waits until the other
# is woken: 18 ms for four million bytes, 3 ms through a file. Also, a sender never waits for a receiver that has
# stopped reading.
#
# The receiver copies the rows, because rows that it keeps would otherwise be overwritten by the next message.


TableLocations = Sequence[tuple[int, int]]
"""Locations of tables in a file: (first byte, length) of each."""
_LOCATION = struct.Struct("<QQ")


def create_unnamed_file() -> int:
    """Create a file that is deleted with its last descriptor; return the descriptor."""
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
    """Write tables, and the message that is built from their locations; this overwrites the file."""
    locations, end = write_tables(file, tables)
    data = pickle.dumps(message(locations), protocol=5)
    _write(file, data, end)
    connection.send_bytes(_LOCATION.pack(end, len(data)))


def receive(connection: Connection, file: int) -> Any:
    """Return the next message."""
    start, length = _LOCATION.unpack(connection.recv_bytes())
    return pickle.loads(_read(file, length, start))


def write_tables(file: int, tables: Mapping[str, Sequence[pa.Table]]) -> tuple[dict[str, TableLocations], int]:
    """Write tables to the file; return their locations, and the end of the last one."""
    locations: dict[str, TableLocations] = {}
    end = 0
    for name, parts in tables.items():
        part_locations = []
        for table in parts:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            length = _write(file, sink.getvalue(), end)
            part_locations.append((end, length))
            end += length
        locations[name] = part_locations
    return locations, end


def read_tables(file: int, locations: TableLocations) -> list[pa.Table]:
    """Read the tables at these locations."""
    return [pa.ipc.open_stream(_read(file, length, start)).read_all() for start, length in locations]


def _write(file: int, data: Any, offset: int) -> int:
    written, view = 0, memoryview(data)
    while written < len(view):
        written += os.pwrite(file, view[written:], offset + written)
    return len(view)


def _read(file: int, length: int, offset: int) -> bytes:
    data = os.pread(file, length, offset)
    while len(data) < length:
        more = os.pread(file, length - len(data), offset + len(data))
        if not more:
            raise EOFError("a file of parcels ends too early")
        data += more
    return data


READY = b"ready"
_POLL_INTERVAL = 10.0
"""Seconds between two checks of an idle process for mapped files that were deleted."""
_IDLE_TIMEOUT = 900.0
"""Seconds without a request after which the process ends."""

RequestKey = tuple[int, str]
"""(Batch number, dataflow token) of a request; the response contains it."""


@dataclass(frozen=True)
class WorkerRequest:
    """A request to run a view partition of batch `number`.

    `dataflow` is None if the worker has it already, by its token. `keep_slots`: slots whose runs are written.
    `inputs`: locations of each input's rows.
    """

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
    """Tokens of dataflows that no later request uses."""
    inputs: Mapping[str, TableLocations] = field(default_factory=dict)

    @property
    def key(self) -> RequestKey:
        return self.number, self.token


@dataclass(frozen=True)
class WorkerResponse:
    """The result of a request. `deltas`: locations of each view's rows; `error`: the reason why the request failed."""

    request_key: RequestKey
    deltas: Mapping[str, TableLocations] = field(default_factory=dict)
    entries: Sequence[RunEntry] = ()
    operator_seconds: Mapping[str, float] = field(default_factory=dict)
    output_rows: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds from receiving the request until the result is complete."""
    error: str | None = None


@dataclass(frozen=True)
class _LocalHandle:
    """A dataflow in the form of a Spark broadcast, as DataflowHandle expects it."""

    value: Dataflow


def main(socket_fd: int, request_fd: int, response_fd: int) -> None:
    """Serve requests until the maintainer has ended.

    The arguments are descriptors: of the socket, of the request file, and of the response file.
    """
    with Connection(socket_fd) as connection:
        dataflows: dict[str, Dataflow] = {}
        try:
            connection.send_bytes(READY)
            while _wait_for_request(connection):
                _serve_request(connection, receive(connection, request_fd), dataflows, request_fd, response_fd)
        except (EOFError, OSError):
            return


def _wait_for_request(connection: Connection) -> bool:
    """Wait for a request; False if none came within `_IDLE_TIMEOUT` seconds."""
    deadline = time.monotonic() + _IDLE_TIMEOUT
    while not connection.poll(_POLL_INTERVAL):
        worker_cache.close_removed_runs()
        if time.monotonic() > deadline:
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
        tables = {name: read_tables(request_fd, locations) for name, locations in request.inputs.items()}
        deltas, entries, context = _run_request(request, dataflows[request.token], tables)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        send(connection, response_fd, {}, lambda _: WorkerResponse(request.key, error=text))
        return
    measurements = (context.operator_seconds, context.output_rows, context.skipped)
    send(
        connection,
        response_fd,
        {} if request.is_warm_up else deltas,
        lambda locations: WorkerResponse(request.key, locations, entries, *measurements, time.perf_counter() - started),
    )


def _run_request(
    request: WorkerRequest, dataflow: Dataflow, tables: Mapping[str, Sequence[pa.Table]]
) -> tuple[dict[str, list[pa.Table]], list[RunEntry], LocalContext]:
    """Run the operators; return the deltas of each view, the written runs, and the context with its measurements."""
    task_context = TaskContext(
        dataflow_handle=DataflowHandle(request.token, _LocalHandle(dataflow)),
        active=request.active,
        manifest=request.manifest,
        directory=request.directory,
        number=request.number,
        durable=request.durable,
        memory=request.memory,
        threads=1,
    )
    cache = worker_cache.cache_for(task_context)
    inputs: dict[str, InputSource] = {name: MemoryRows(pa.concat_tables(parts)) for name, parts in tables.items()}
    context = LocalContext(
        cache.pool.use_primary(1), dataflow, partial(cache.arrangement, task_context), request.active, cache.memory
    )
    deltas = run_operators(context, inputs)
    entries = cache.write(
        task_context, "p", {slot: run for slot, run in context.new_runs.items() if slot in request.keep_slots}
    )
    return {str(view): parts for view, parts in deltas.items()}, entries, context
