"""`AsyncClient`: the calls of `Client` for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa

from viewkeeper.client import protocol
from viewkeeper.client.change_stream import ChangeStreamDecoder, StreamEnded, SubscriptionTimer
from viewkeeper.client.client import CONNECT_SECONDS, RETRY_SECONDS, TIMEOUT, T
from viewkeeper.client.http import tls_context
from viewkeeper.client.protocol import Call
from viewkeeper.errors import BadValue, MissingDependency, UnknownName, Unreachable
from viewkeeper.explain.result import Plan
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read import freshness
from viewkeeper.read.freshness import ANY, STALE, AfterTokens, Level
from viewkeeper.read.rows import python_rows
from viewkeeper.read.subscribe import Delta
from viewkeeper.sql.result import Result


class AsyncClient:
    """A server's database for asyncio. Use it with `async with`, or call `close`."""

    def __init__(self, url: str, *, token: str | None = None, retry: float = RETRY_SECONDS, verify: Any = True) -> None:
        self._httpx = _import_httpx()
        self.url = protocol.address_of(url)
        self._http = self._httpx.AsyncClient(
            base_url=self.url,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=TIMEOUT,
            verify=tls_context(verify) if self.url.startswith("https:") else False,
        )
        self._retry = retry
        self._table_shapes: dict[str, Table] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        await self._http.aclose()

    # -- writes -------------------------------------------------------------------------------------------------------

    async def put(self, table: str, rows: Any) -> Token:
        """Insert rows, or replace whole rows of the same key. All rows of a call are one write."""
        return await self._write(table, lambda shape: protocol.put_call(shape, rows))

    async def delete(self, table: str, keys: Any) -> Token:
        """Delete rows by key."""
        return await self._write(table, lambda shape: protocol.delete_call(shape, keys))

    async def update(self, table: str, key: Any, columns: Mapping[str, Any]) -> Token:
        """Change some columns of one row, atomically. The row must exist."""
        return await self._write(table, lambda shape: protocol.update_call(shape, key, columns))

    # -- reads --------------------------------------------------------------------------------------------------------

    async def get(
        self, name: str, key: Any, level: Level = ANY, *, after: AfterTokens = None, timeout: float = freshness.TIMEOUT
    ) -> dict[str, Any] | None:
        """The row of a table or view with this key; None if there is none."""
        call = await self._build_call(name, lambda shape: protocol.get_call(shape, key, level, after, timeout))
        status, _, body = await self._send(call)
        return protocol.row_of(status, body)

    async def scan(
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
    ) -> AsyncIterator[dict[str, Any]]:
        """Rows in key order: by a key prefix, or from `start` (included) to `stop` (excluded). All of one state.

        `where`, `columns`, `order_by`: as on an open database; the server sends only what matches.
        """
        ranges = {"prefix": prefix, "start": start, "stop": stop}
        selection = await self._build_call(
            name, lambda shape: protocol.selection_parameters(shape, where, columns, order_by, limit, **ranges)
        )
        table = await self.table(name)
        async for page in self._pages(
            table, ranges, limit, protocol.level_parameters(level, after, timeout), timeout, selection
        ):
            for row in python_rows(table, page):
                yield row

    async def read(
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
        selection = await self._build_call(
            name, lambda shape: protocol.selection_parameters(shape, where, columns, order_by, limit)
        )
        table = await self.table(name)
        if not table.is_stored and not selection and limit is None:
            return protocol.arrow_of((await self._send_checked(protocol.read_call(table, level is STALE)))[1]).cast(
                table.external_schema
            )
        pairs = protocol.level_parameters(level, after, timeout)
        return protocol.concat_pages(
            table, columns, [page async for page in self._pages(table, {}, limit, pairs, timeout, selection)]
        )

    async def sql(self, text: str, *, engine: str = "auto", stale: bool = False, **parameters: Any) -> Result:
        """Run a statement and return its rows or a report; of several statements, see `Result.each`."""
        results = []
        for step in protocol.sql_steps(text, parameters):
            with step.locate_errors():
                results.append(
                    protocol.result_of(*await self._send_checked(protocol.sql_call(step.text, engine, stale)))
                )
        return Result.of(results)

    async def subscribe(
        self,
        name: str,
        since: Token | str | None = None,
        *,
        timeout: float | None = None,
        progress: float | None = None,
        stale: bool = False,
    ) -> AsyncIterator[Delta]:
        """A view's current rows, then every committed change exactly once; with `since`, only the changes after it.

        If the server stops or is lost, the client connects again and the subscription continues where it was. `stale`:
        a view that is already suspended first yields its old rows; otherwise that is an error (VK605).
        """
        table = await self.table(name)
        timer, deltas = SubscriptionTimer(table, timeout, progress), self._deltas_with_retry(table, since, stale)
        next_delta: asyncio.Future[Delta] | None = None
        try:
            while not timer.has_expired:
                next_delta = next_delta or asyncio.ensure_future(anext(deltas))
                await asyncio.wait({next_delta}, timeout=timer.remaining_seconds())
                if next_delta.done():
                    found, next_delta = next_delta.result(), None
                    if timer.record(found):
                        yield found
                elif (mark := timer.due_mark()) is not None:
                    yield mark
        finally:
            if next_delta is not None:
                next_delta.cancel()
                await asyncio.wait({next_delta})
            await deltas.aclose()

    async def _deltas_with_retry(
        self, table: Table, since: Token | str | None, stale: bool
    ) -> AsyncGenerator[Delta, None]:
        lost: float | None = None
        while True:
            try:
                async for delta in self._connection_deltas(table, since, stale):
                    since, lost = None if delta.kind == "reset" else delta.token, None  # the rows follow a reset
                    yield delta
            except StreamEnded as ended:
                since, lost = ended.resume, None
            except Unreachable:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > self._retry:
                    raise
                await asyncio.sleep(0.2)

    # -- inspection ---------------------------------------------------------------------------------------------------

    async def status(self) -> Any:
        """Views, batch, lag in changes and seconds, rates, and bytes of state."""
        return protocol.status_of((await self._send_checked(Call("GET", "/v1/status")))[1])

    async def token(self, name: str | None = None) -> Token:
        """The state that reads see now, as a token."""
        return protocol.position_of((await self._send_checked(protocol.token_call(name)))[1])

    async def table(self, name: str) -> Table:
        """Columns and key of a table or view."""
        cached = self._table_shapes.get(name)
        if cached is None:
            cached = self._table_shapes[name] = protocol.parse_description(
                (await self._send_checked(protocol.shape_call(name)))[1]
            ).table
        return cached

    async def tables(self) -> list[Table]:
        """All base tables, by name."""
        return [
            description.table
            for description in protocol.parse_descriptions(
                "table", (await self._send_checked(protocol.shapes_call("tables")))[1]
            )
        ]

    async def views(self) -> list[Table]:
        """All materialized views, by name."""
        return [
            description.table
            for description in protocol.parse_descriptions(
                "view", (await self._send_checked(protocol.shapes_call("views")))[1]
            )
        ]

    async def indexes(self) -> list[Table]:
        """All indexes, by name."""
        return [
            description.table
            for description in protocol.parse_descriptions(
                "index", (await self._send_checked(protocol.shapes_call("views")))[1]
            )
        ]

    async def explain(self, view: str) -> Plan:
        """The maintenance plan of a view as text, which a notebook shows as a diagram."""
        return protocol.plan_of((await self._send_checked(protocol.plan_call(view)))[1])

    # -- internal -----------------------------------------------------------------------------------------------------

    async def _write(self, name: str, build_call: Any) -> Token:
        _, body = await self._send_checked(await self._build_call(name, build_call))
        return protocol.token_of(body)

    async def _build_call(self, name: str, build_call: Callable[[Table], T]) -> T:
        try:
            return build_call(await self.table(name))
        except (BadValue, UnknownName):
            if self._table_shapes.pop(name, None) is None:
                raise
            return build_call(await self.table(name))

    async def _pages(
        self,
        table: Table,
        ranges: Mapping[str, Any],
        limit: int | None,
        level_parameters: list[tuple[str, str]],
        timeout: float,
        selection: list[tuple[str, str]],
    ) -> AsyncIterator[pa.Table]:
        cursor, remaining = None, limit
        while remaining is None or remaining > 0:
            page_rows = protocol.PAGE_ROWS if remaining is None else min(remaining, protocol.PAGE_ROWS)
            status, headers, body = await self._send(
                protocol.page_call(table, ranges, page_rows, cursor, level_parameters, timeout, selection)
            )
            protocol.raise_problem(status, body)
            page = protocol.arrow_of(body)
            remaining = None if remaining is None else remaining - page.num_rows
            yield page
            cursor = headers.get("viewkeeper-cursor")
            if cursor is None:
                return

    async def _connection_deltas(self, table: Table, since: Token | str | None, stale: bool) -> AsyncIterator[Delta]:
        call = protocol.changes_call(table, since, stale)
        decoder = ChangeStreamDecoder(table)
        timeouts = self._httpx.Timeout(CONNECT_SECONDS, read=TIMEOUT)
        try:
            async with self._http.stream(
                call.method, call.path, headers=dict(call.headers), timeout=timeouts
            ) as answer:
                if answer.status_code == 503:
                    raise Unreachable(f"{self.url} takes no more subscribers now.")
                if answer.status_code >= 400:
                    raise protocol.problem_error(await answer.aread(), answer.status_code)
                async for piece in answer.aiter_raw():
                    for delta in decoder.feed(piece):
                        yield delta
        except (self._httpx.HTTPError, self._httpx.StreamError) as error:
            raise protocol.unreachable(self.url, error) from error
        raise Unreachable(f"{self.url} ended the stream.")

    async def _send_checked(self, call: Call) -> tuple[str, bytes]:
        status, headers, body = await self._send(call)
        protocol.raise_problem(status, body)
        return headers.get("content-type", ""), body

    async def _send(self, call: Call) -> tuple[int, Mapping[str, str], bytes]:
        limit = TIMEOUT if call.seconds is None else TIMEOUT + call.seconds
        body = None if call.body is None else bytes(call.body)
        send = partial(self._http.request, call.method, call.path, content=body, headers=dict(call.headers))
        try:
            try:
                answer = await send(timeout=limit)
            except (self._httpx.ReadError, self._httpx.WriteError, self._httpx.RemoteProtocolError):
                if call.method != "GET":
                    raise
                answer = await send(timeout=limit)  # the server may just have closed the kept-alive connection (`http`)
        except self._httpx.HTTPError as error:
            raise protocol.unreachable(self.url, error) from error
        return answer.status_code, answer.headers, answer.content


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingDependency(
            "A client for asyncio needs httpx, which is not installed.", hint="pip install 'viewkeeper[client]'"
        ) from None
    return httpx


def connect_async(
    url: str, *, token: str | None = None, retry: float = RETRY_SECONDS, verify: Any = True
) -> AsyncClient:
    """`connect` for asyncio: `async with connect_async("http://127.0.0.1:8080") as db: await db.get(…)`."""
    return AsyncClient(url, token=token, retry=retry, verify=verify)
