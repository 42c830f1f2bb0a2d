"""`Client`: a database behind a server, with the methods of an open database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.client import protocol
from viewkeeper.client.change_stream import ChangeStreamDecoder, StreamEnded, SubscriptionTimer
from viewkeeper.client.http import CONNECTION_ERRORS, Answer, ConnectionPool, Stream
from viewkeeper.client.protocol import Call, TableDescription
from viewkeeper.errors import BadValue, UnknownName, Unreachable
from viewkeeper.explain.result import Plan
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read import freshness
from viewkeeper.read.freshness import ANY, STALE, AfterTokens, Level
from viewkeeper.read.handle import Handle
from viewkeeper.read.rows import python_rows
from viewkeeper.read.subscribe import Delta
from viewkeeper.resources.fork_guard import owned
from viewkeeper.sql.result import Result

# Handles of a server's tables and views.


class RemoteHandle(Handle):
    """A handle whose rows are requested when they are read; its shape is that of the moment when it was created."""

    def __init__(self, client: Any, description: TableDescription) -> None:
        self._db, self._description = client, description
        self.name = description.table.name

    @property
    def definition(self) -> str:
        """The statement that creates it."""
        return self._description.sql

    def _current_table(self) -> Table:
        return self._description.table

    def _kind(self) -> str:
        return self._description.kind


T = TypeVar("T")
TIMEOUT = 60.0
"""Seconds to wait for an answer, besides the time that a read may wait for freshness."""
CONNECT_SECONDS = 10.0
"""Seconds in which a subscription must reach its server, before it tries again."""
RETRY_SECONDS = 30.0
"""Seconds for which a subscription tries to reach its server again."""


class Client:
    """A server's database. Use it as a context manager, or call `close`. Its methods may be called from any thread.

    `retry`: seconds for which a subscription tries to reach the server again when it is gone.
    """

    def __init__(self, url: str, *, token: str | None = None, retry: float = RETRY_SECONDS, verify: Any = True) -> None:
        self.url = protocol.address_of(url)
        self._connections = ConnectionPool(self.url, token, verify)
        self._retry = retry
        self._table_shapes: dict[str, Table] = {}
        owned(self, f"The client of {self.url} was made")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._connections.close()

    # -- writes -------------------------------------------------------------------------------------------------------

    def put(self, table: str, rows: Any) -> Token:
        """Insert rows, or replace whole rows of the same key. All rows of a call are one write."""
        return self._write(table, lambda shape: protocol.put_call(shape, rows))

    def delete(self, table: str, keys: Any) -> Token:
        """Delete rows by key: one key (a scalar, or a tuple for a composite key), a list, or an Arrow table of keys."""
        return self._write(table, lambda shape: protocol.delete_call(shape, keys))

    def update(self, table: str, key: Any, columns: Mapping[str, Any]) -> Token:
        """Change some columns of one row, atomically. The row must exist."""
        return self._write(table, lambda shape: protocol.update_call(shape, key, columns))

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(
        self, name: str, key: Any, level: Level = ANY, *, after: AfterTokens = None, timeout: float = freshness.TIMEOUT
    ) -> dict[str, Any] | None:
        """The row of a table or view with this key; None if there is none."""
        call = self._build_call(name, lambda shape: protocol.get_call(shape, key, level, after, timeout))
        answer = self._send(call)
        return protocol.row_of(answer.status, answer.body)

    def scan(
        self,
        name: str,
        prefix: Any = None,
        start: Any = None,
        stop: Any = None,
        limit: int | None = None,
        level: Level = ANY,
        *,
        where: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        order_by: Sequence[str] | str | None = None,
        after: AfterTokens = None,
        timeout: float = freshness.TIMEOUT,
    ) -> Iterator[dict[str, Any]]:
        """Rows in key order: by a key prefix, or from `start` (included) to `stop` (excluded). All of one state.

        `where`, `columns`, `order_by`: as on an open database; the server sends only what matches.
        """
        ranges = {"prefix": prefix, "start": start, "stop": stop}
        selection = self._build_call(
            name, lambda shape: protocol.selection_parameters(shape, where, columns, order_by, limit, **ranges)
        )
        table = self.shape(name)
        pages = self._pages(table, ranges, limit, protocol.level_parameters(level, after, timeout), timeout, selection)
        return (row for page in pages for row in python_rows(table, page))

    def read(
        self,
        name: str,
        level: Level = ANY,
        *,
        where: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        order_by: Sequence[str] | str | None = None,
        limit: int | None = None,
        after: AfterTokens = None,
        timeout: float = freshness.TIMEOUT,
    ) -> pa.Table:
        """Rows of a table or view from one consistent state, in key order: all, or those that `where`, `columns`,
        `order_by` and `limit` select, as in `scan`."""
        selection = self._build_call(
            name, lambda shape: protocol.selection_parameters(shape, where, columns, order_by, limit)
        )
        table = self.shape(name)
        if not table.is_stored and not selection and limit is None:
            return protocol.arrow_of(self._send_checked(protocol.read_call(table, level is STALE))[1]).cast(
                table.external_schema
            )
        pairs = protocol.level_parameters(level, after, timeout)
        return protocol.concat_pages(table, columns, list(self._pages(table, {}, limit, pairs, timeout, selection)))

    def pages(self, name: str, prefix: Any = None, limit: int | None = None, level: Level = ANY) -> Iterator[pa.Table]:
        """`scan` as Arrow tables, one for each page."""
        pairs = protocol.level_parameters(level, None, freshness.TIMEOUT)
        return self._pages(self.shape(name), {"prefix": prefix}, limit, pairs, freshness.TIMEOUT, [])

    def suspension(self, name: str) -> dict[str, Any] | None:
        """Why a view is suspended, since when, and the state that it shows; None if it is maintained."""
        return protocol.suspension_of(self._send_checked(protocol.shape_call(name))[1])

    def sql(self, text: str, *, engine: str = "auto", stale: bool = False, **parameters: Any) -> Result:
        """Run a statement and return its rows or a report: `db.sql("SELECT … WHERE k = :k", k=3)`.

        Several statements, separated by semicolons, run one after the other; `each` of the result has the results of
        all.
        """
        results = []
        for step in protocol.sql_steps(text, parameters):
            with step.locate_errors():
                results.append(protocol.result_of(*self._send_checked(protocol.sql_call(step.text, engine, stale))))
        return Result.of(results)

    def subscribe(
        self,
        name: str,
        since: Token | str | None = None,
        *,
        timeout: float | None = None,
        progress: float | None = None,
        stale: bool = False,
    ) -> Iterator[Delta]:
        """A view's current rows, then every committed change exactly once; with `since`, only the changes after it.

        If the server stops or is lost, the client connects again and the subscription continues where it was. `stale`:
        a view that is already suspended first yields its old rows; otherwise that is an error (VK605).
        """
        table = self.shape(name)
        return _Subscription(self, table, since, stale).deltas(timeout, progress)

    # -- inspection ---------------------------------------------------------------------------------------------------

    def status(self) -> Any:
        """Views, batch, lag in changes and seconds, rates, and bytes of state."""
        return protocol.status_of(self._send_checked(Call("GET", "/v1/status"))[1])

    def token(self, name: str | None = None) -> Token:
        """The state that reads see now, as a token."""
        return protocol.position_of(self._send_checked(protocol.token_call(name))[1])

    def table(self, name: str) -> Handle:
        """A handle of a table or view: its columns, key and definition; a notebook shows its first rows."""
        return RemoteHandle(self, protocol.parse_description(self._send_checked(protocol.shape_call(name))[1]))

    def tables(self) -> list[Handle]:
        """All base tables, by name."""
        return self._list_handles("tables", "table")

    def views(self) -> list[Handle]:
        """All materialized views, by name."""
        return self._list_handles("views", "view")

    def indexes(self) -> list[Handle]:
        """All indexes, by name."""
        return self._list_handles("views", "index")

    def explain(self, view: str) -> Plan:
        """The maintenance plan of a view as text, which a notebook shows as a diagram."""
        return protocol.plan_of(self._send_checked(protocol.plan_call(view))[1])

    def shape(self, name: str) -> Table:
        """Columns and key of a table or view, cached by this client."""
        cached = self._table_shapes.get(name)
        if cached is None:
            cached = self._table_shapes[name] = protocol.parse_description(
                self._send_checked(protocol.shape_call(name))[1]
            ).table
        return cached

    def _list_handles(self, collection: str, kind: str) -> list[Handle]:
        body = self._send_checked(protocol.shapes_call(collection))[1]
        return [RemoteHandle(self, description) for description in protocol.parse_descriptions(kind, body)]

    # -- internal -----------------------------------------------------------------------------------------------------

    def _write(self, name: str, build_call: Any) -> Token:
        _, body = self._send_checked(self._build_call(name, build_call))
        return protocol.token_of(body)

    def _build_call(self, name: str, build_call: Callable[[Table], T]) -> T:
        """Build a request with the cached shape of the table. If the arguments do not fit it, read the shape again
        first."""
        try:
            return build_call(self.shape(name))
        except (BadValue, UnknownName):
            if self._table_shapes.pop(name, None) is None:
                raise
            return build_call(self.shape(name))

    def _pages(
        self,
        table: Table,
        ranges: Mapping[str, Any],
        limit: int | None,
        level_parameters: list[tuple[str, str]],
        timeout: float,
        selection: list[tuple[str, str]],
    ) -> Iterator[pa.Table]:
        cursor, remaining = None, limit
        while remaining is None or remaining > 0:
            page_rows = protocol.PAGE_ROWS if remaining is None else min(remaining, protocol.PAGE_ROWS)
            answer = self._send(
                protocol.page_call(table, ranges, page_rows, cursor, level_parameters, timeout, selection)
            )
            protocol.raise_problem(answer.status, answer.body)
            page = protocol.arrow_of(answer.body)
            remaining = None if remaining is None else remaining - page.num_rows
            yield page
            cursor = answer.headers.get("viewkeeper-cursor")
            if cursor is None:
                return

    def _send_checked(self, call: Call) -> tuple[str, bytes]:
        """The content type and the body of an answer; raises the error of a problem document."""
        answer = self._send(call)
        protocol.raise_problem(answer.status, answer.body)
        return answer.headers.get("content-type", ""), answer.body

    def _send(self, call: Call) -> Answer:
        limit = TIMEOUT if call.seconds is None else TIMEOUT + call.seconds
        try:
            return self._connections.request(call.method, call.path, call.body, call.headers, limit)
        except CONNECTION_ERRORS as error:
            raise protocol.unreachable(self.url, error) from error


class _Subscription:
    """Reads a stream of changes in its own thread, so that the caller can wait for deltas with a timeout."""

    def __init__(self, client: Client, table: Table, since: Token | str | None, stale: bool) -> None:
        self._client, self._table, self._since, self._stale = client, table, since, stale
        self._results: Queue[Delta | BaseException] = Queue(64)
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        owned(self, f"The subscription to {table.name} was made")

    def deltas(self, timeout: float | None, progress: float | None) -> Iterator[Delta]:
        thread = threading.Thread(target=self._run, name="viewkeeper-subscription", daemon=True)
        thread.start()
        timer = SubscriptionTimer(self._table, timeout, progress)
        try:
            while not timer.has_expired:
                try:
                    found = self._results.get(timeout=timer.remaining_seconds())
                except Empty:
                    if (mark := timer.due_mark()) is not None:
                        yield mark
                    continue
                if isinstance(found, BaseException):
                    raise found
                if timer.record(found):
                    yield found
        finally:
            self.stop()

    def stop(self) -> None:
        self._stopped.set()
        if self._stream is not None:
            self._stream.end()

    def _run(self) -> None:
        lost: float | None = None
        while not self._stopped.is_set():
            try:
                self._read_stream()
                lost = None
            except StreamEnded as ended:
                self._since, lost = ended.resume, None
            except Unreachable as error:
                now = time.monotonic()
                lost = lost or now
                if now - lost > self._client._retry:
                    return self._enqueue(error)
                self._stopped.wait(0.2)
            except BaseException as error:
                if not self._stopped.is_set():
                    self._enqueue(error)
                return

    def _read_stream(self) -> None:
        """Read one connection until it ends."""
        call = protocol.changes_call(self._table, self._since, self._stale)
        decoder = ChangeStreamDecoder(self._table)
        try:
            stream = self._client._connections.stream(call.path, call.headers, CONNECT_SECONDS, TIMEOUT)
            self._stream = stream
            with closing(stream):
                if stream.status == 503:
                    raise Unreachable(f"{self._client.url} takes no more subscribers now.")
                if stream.status >= 400:
                    raise protocol.problem_error(stream.read(), stream.status)
                for piece in stream.pieces():
                    for delta in decoder.feed(piece):
                        self._since = None if delta.kind == "reset" else delta.token  # the rows follow a reset
                        self._enqueue(delta)
                        if self._stopped.is_set():
                            return
        except CONNECTION_ERRORS as error:
            raise protocol.unreachable(self._client.url, error) from error
        raise Unreachable(f"{self._client.url} ended the stream.")

    def _enqueue(self, result: Delta | BaseException) -> None:
        while not self._stopped.is_set():
            with suppress(Full):
                self._results.put(result, timeout=0.2)
                return


def connect(url: str, *, token: str | None = None, retry: float = RETRY_SECONDS, verify: Any = True) -> Client:
    """Connect to a database behind `vk serve`: `connect("http://127.0.0.1:8080", token=…)`; use it like an open one.

    `retry`: seconds for which a subscription tries to reach a server that is gone. `verify`: for https, a PEM file or
    an ssl.SSLContext if the certificate is not from a known authority (SSL_CERT_FILE does the same).
    """
    return Client(url, token=token, retry=retry, verify=verify)
