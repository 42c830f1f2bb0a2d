"""The dispatch of a request.

    1  is the server free, and does the Host header name it?              503, 421
    2  does the request come from a page of another site?                 403
    3  the caller's role, from a token if the server has tokens           401
    4  the endpoint, its role, its parameters                             404, 405, 403, 400
    5  the reply, or a problem

Everything that waits for a disk or a lock runs in threads. Plain reads by key and plain puts do not pass through here
(`fast_path`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.routing import compile_path

from viewkeeper.errors import Forbidden, Overloaded, Unauthorized, UnknownName, ViewkeeperError
from viewkeeper.server import errors, routes
from viewkeeper.server.auth import AllowedHosts, is_role_sufficient
from viewkeeper.server.context import ServerContext, shutdown_error, stopping_error
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.fast_path.point_read import CACHE_CONTROL, SECURITY_HEADERS, VARY, FastPointReads
from viewkeeper.server.fast_path.put import FastPuts
from viewkeeper.server.http import event_formats, formats, json_values
from viewkeeper.server.http.request import Reply, Request, compress_reply
from viewkeeper.server.page import StaticFiles
from viewkeeper.server.routes import Endpoint, all_endpoints
from viewkeeper.server.status_feed import StatusFeed

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_log = logging.getLogger("viewkeeper.server")


class App:
    """The ASGI application over one `ServerContext`."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.status_feed = StatusFeed(context)
        self.endpoints = all_endpoints(self.status_feed)
        self._routes = _group_by_path(self.endpoints)
        self._hosts = AllowedHosts(context.settings.host, context.settings.hosts)
        self._static_files = StaticFiles()
        context.openapi_json = json_values.encode_json(routes.build_document(self.endpoints))
        self.point_reads = FastPointReads(context, self._hosts)
        self.fast_puts = FastPuts(context, self._hosts, self._send_problem)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        context, started, counted = self.context, time.perf_counter(), True
        if context.stopping.is_set():
            await self._send_problem(stopping_error(), scope, send)
            return
        # The health check is exempt: a busy server is alive.
        if context.active_requests >= context.limits.requests and scope["path"] != "/healthz":
            await self._send_problem(Overloaded(f"{context.limits.requests} requests are being answered."), scope, send)
            return
        context.active_requests += 1
        status = 500
        try:
            headers = dict(scope["headers"])
            found = self._static_files.find(scope["method"], scope["raw_path"], headers)
            self._hosts.check_request(headers)
            if found is None:
                found = await self._dispatch(scope, receive, self._caller_role(headers))
            if b"accept-encoding" in headers:
                found = await compress_reply(context, found, headers[b"accept-encoding"])
            if not isinstance(found.body, bytes):
                context.active_requests -= 1  # a stream may last; streams have a limit of their own
                counted = False
            status = await self._send_reply(found, scope, receive, send)
        except ViewkeeperError as error:
            status = await self._send_problem(error, scope, send)
        except asyncio.CancelledError:
            if not context.stopping.is_set():
                raise
            status = await self._send_problem(shutdown_error(), scope, send)
        except Exception:
            _log.exception("A request failed: %s %s", scope["method"], scope["path"])
            status = await self._send_problem(errors.server_fault(), scope, send)
        finally:
            context.wake_after_write()
            if counted:
                context.active_requests -= 1
                context.metrics.request_seconds.observe(time.perf_counter() - started)
            context.metrics.requests[min(status // 100, 5)].inc()

    # -- roles --------------------------------------------------------------------------------------------------------

    def _caller_role(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The role of the caller; None without a token, which is enough for public endpoints."""
        keyring = self.context.keyring
        if keyring is None:
            return "admin"
        authorization = headers.get(b"authorization")
        if authorization is None:
            return None
        kind, _, token = authorization.decode("latin-1").partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("The Authorization header is no bearer token.")
        return keyring.role(token.strip())

    # -- dispatch -----------------------------------------------------------------------------------------------------

    async def _dispatch(self, scope: Scope, receive: Receive, role: str | None) -> Reply:
        endpoint, parameters = self._find_endpoint(scope)
        if endpoint.role is not None:
            if role is None:
                raise Unauthorized("This server wants a token.")
            if not is_role_sufficient(role, endpoint.role):
                raise Forbidden(
                    f"{scope['method']} {endpoint.path} needs the role {endpoint.role}; yours is {role}.",
                    hint="Ask for another token.",
                )
        scope["path_params"] = parameters
        request = Request(scope, receive, role or "reader", frozenset(endpoint.parameters))
        return await endpoint.run(self.context, request)

    def _find_endpoint(self, scope: Scope) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint of the path as it was sent: an encoded slash does not separate segments."""
        path, method = scope["raw_path"].decode("ascii"), scope["method"]
        allowed: list[str] = []
        for pattern, by_method in self._routes:
            found = pattern.match(path)
            if found is not None:
                endpoint = by_method.get("GET" if method == "HEAD" else method)
                if endpoint is not None:
                    return endpoint, found.groupdict()
                allowed += by_method
        if allowed:
            methods = ", ".join(dict.fromkeys([*allowed, *(["HEAD"] if "GET" in allowed else [])]))
            raise HttpStatusError(
                405, f"{scope['method'][:20]} is not possible here.", f"{methods} are.", {"allow": methods}
            )
        raise UnknownName(f"There is no {scope['path'][:80]!r} here.", hint="GET /v1/openapi.json lists what there is.")

    # -- replies ------------------------------------------------------------------------------------------------------

    async def _send_problem(self, error: ViewkeeperError, scope: Scope, send: Send) -> int:
        self.context.metrics.errors.labels(error.code).inc()
        status, headers, body = errors.problem_response(error)
        if status in (408, 413) or self.context.stopping.is_set():
            headers["connection"] = "close"  # the rest of the body is not read
        found = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        found += [*SECURITY_HEADERS, (b"content-length", b"%d" % len(body))]
        with suppress(RuntimeError):  # the reply had begun: it can only be ended
            await send({"type": "http.response.start", "status": status, "headers": found})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        return status

    async def _send_reply(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> int:
        reply_headers = {name.encode(): value.encode("latin-1", "replace") for name, value in reply.headers.items()}
        headers = [(b"content-type", reply.media.encode())] if reply.media is not None else []
        headers += [*reply_headers.items(), VARY]
        headers += [header for header in (CACHE_CONTROL, *SECURITY_HEADERS) if header[0] not in reply_headers]
        if isinstance(reply.body, bytes):
            if reply.status != 304:
                headers.append((b"content-length", b"%d" % len(reply.body)))
            body = b"" if scope["method"] == "HEAD" else reply.body
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await self._send_stream(reply, headers, scope, receive, send)
        return reply.status

    async def _send_stream(
        self, reply: Reply, headers: list[tuple[bytes, bytes]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the body in pieces until it ends, the client disconnects, or the client does not receive a piece in
        time."""
        body: Any = reply.body
        if scope["method"] == "HEAD":
            await body.aclose()
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        sender: Any = asyncio.current_task()
        disconnect = asyncio.create_task(_cancel_on_disconnect(receive, sender))
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for piece in body:
                self._caller_role(dict(scope["headers"]))  # a revoked or expired token ends its streams, too
                async with asyncio.timeout(self.context.limits.seconds):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Unauthorized as error:
            last_event = (
                event_formats.encode_event("end", errors.problem_document(error))
                if reply.media == formats.EVENTS
                else b""
            )
            await send(
                {"type": "http.response.body", "body": last_event}
            )  # other formats get the reason when they reconnect
        except TimeoutError:
            _log.info("A client does not read; its connection is closed.")
        except asyncio.CancelledError:
            if not disconnect.done():
                raise  # the server is stopping
            sender.uncancel()
        finally:
            disconnect.cancel()
            await body.aclose()


async def _cancel_on_disconnect(receive: Receive, sender: asyncio.Task[Any]) -> None:
    """Cancel the reply when its client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    sender.cancel()


def _group_by_path(endpoints: tuple[Endpoint, ...]) -> list[tuple[re.Pattern[str], dict[str, Endpoint]]]:
    """The endpoints of each path by method, in the order in which paths are matched."""
    found: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [(compile_path(path)[0], by_method) for path, by_method in found.items()]
