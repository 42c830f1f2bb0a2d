"""A request as the endpoints see it, their replies, and the compression of replies."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from viewkeeper.errors import TooLarge
from viewkeeper.server.context import ServerContext
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.http import formats
from viewkeeper.server.http.paths import name_of

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
_ACCEPTED_ENCODINGS = {"accept-encoding": "gzip"}


@dataclass(frozen=True)
class Reply:
    """A reply. A body that is not bytes is sent piece by piece."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    media: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Request:
    """One request. A parameter that the endpoint does not have is an error: a misspelt one must not be ignored."""

    def __init__(
        self, scope: Mapping[str, Any], receive: Receive, role: str, allowed_parameters: frozenset[str]
    ) -> None:
        self.scope, self.role = scope, role
        self._receive = receive
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._parameters: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(scope["query_string"].decode("ascii"), True, bool(scope["query_string"]), errors="strict")
        except ValueError:
            raise HttpStatusError(400, "The query of the URL is not percent-encoded UTF-8.", "") from None
        for name, value in pairs:
            if name not in allowed_parameters:
                known = ", ".join(sorted(allowed_parameters)) or "none"
                raise HttpStatusError(400, f"There is no parameter {name[:40]!r} here.", f"Parameters: {known}.")
            self._parameters.setdefault(name, []).append(value)
        if self.parameter("numbers") not in (None, "exact", "native"):
            raise HttpStatusError(400, "numbers is exact or native.", "")

    # -- the path -----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The table or view in the path."""
        return name_of(self.scope["path_params"]["name"])

    @property
    def key(self) -> list[str]:
        """The segments after /rows/, still encoded."""
        found: list[str] = self.scope["path_params"]["key"].split("/")
        return found

    # -- parameters and headers ---------------------------------------------------------------------------------------

    @property
    def native(self) -> bool:
        return self._parameters.get("numbers") == ["native"]

    def parameter_values(self, name: str) -> list[str]:
        return self._parameters.get(name, [])

    def parameter(self, name: str) -> str | None:
        found = self._parameters.get(name, [])
        if len(found) > 1:
            raise HttpStatusError(400, f"{name} is there {len(found)} times.", "Give it once.")
        return found[0] if found else None

    def number(self, name: str, default: int, *, maximum: int) -> int:
        text = self.parameter(name)
        if text is None:
            return min(default, maximum)
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= maximum:
            raise HttpStatusError(400, f"{name} is {text[:40]!r}.", f"Give a number from 1 to {maximum}.")
        return int(text)

    def seconds(self, name: str, default: float, maximum: float) -> float:
        text = self.parameter(name)
        if text is None:
            return min(default, maximum)
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) > maximum:
            raise HttpStatusError(400, f"{name} is {text[:40]!r}.", f"Give a number of seconds, up to {maximum:g}.")
        return float(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.parameter(name)
        if text not in (None, "true", "false"):
            raise HttpStatusError(400, f"{name} is {str(text)[:40]!r}.", "It is true or false.")
        return default if text is None else text == "true"

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    def has_etag(self, etag: str | None) -> bool:
        """Whether the client has the state with this tag."""
        tags = self._headers.get("if-none-match")
        if etag is None or tags is None:
            return False
        return etag in (part.strip().removeprefix("W/") for part in tags.split(","))

    @property
    def has_any_etag(self) -> bool:
        """Whether the client has any state (`*`): it only needs to know whether there is one."""
        return bool(self._headers.get("if-none-match", "").strip() == "*")

    # -- the body -----------------------------------------------------------------------------------------------------

    async def body(self, max_bytes: int, seconds: float) -> bytes:
        """The whole body, decompressed; it may exceed neither the size nor the time limit."""
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise HttpStatusError(
                415,
                f"A body in {encoding[:40]!r} is not understood.",
                "Send it as it is, or as gzip.",
                _ACCEPTED_ENCODINGS,
            )
        body = await self._read_body(max_bytes, seconds)
        if encoding == "identity":
            return body
        return await asyncio.get_running_loop().run_in_executor(None, decompress, body, max_bytes)

    async def _read_body(self, max_bytes: int, seconds: float) -> bytes:
        length = self._headers.get("content-length", "")
        if length.isdigit() and int(length) > max_bytes:
            raise _too_large(max_bytes)
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise HttpStatusError(400, "The request ended in the middle of its body.", "")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise HttpStatusError(408, f"The body did not arrive within {seconds:g} s.", "") from None

    async def cancel_if_disconnected(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that takes a while, and cancel it when the client disconnects. Call it after the body was
        read."""
        task, disconnect = asyncio.create_task(coroutine), asyncio.create_task(self._wait_for_disconnect())
        try:
            await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise HttpStatusError(400, "The client has gone.", "")
            return await task
        finally:
            disconnect.cancel()
            task.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def decompress(body: bytes, max_bytes: int) -> bytes:
    """The content of a gzip body; at most the allowed number of bytes is ever decompressed."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            found = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise HttpStatusError(400, f"The body is no gzip: {error}.", "") from None
    if len(found) > max_bytes:
        raise _too_large(max_bytes)
    return found


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        f"The body has more than {max_bytes} bytes.", hint="Send it in several requests: each is one write."
    )


# Compression of replies for clients that accept gzip: text above a minimum size, whole or piece by piece.
#
# Events are not compressed, because each must be sent at once. Arrow is not compressed, because its readers map the
# bytes as they are. A compressed reply has the same content in other bytes, so its ETag is a weak one.


MIN_COMPRESSED_BYTES = 1_400
"""Minimum size: a reply that fits one packet does not arrive sooner when it is compressed."""

_GZIP_LEVEL = 1
"""Level 1 of 1 to 9 compresses rows as JSON to a fifth, at 150 MB/s; level 6 takes three times as long for a sixth."""
_TEXT_MEDIA = (formats.JSON, formats.LINES, "text/")


async def compress_reply(context: ServerContext, reply: Reply, accept_encoding: bytes) -> Reply:
    """The reply, compressed if the Accept-Encoding allows it."""
    media = reply.media or ""
    if (
        not media.startswith(_TEXT_MEDIA)
        or media == formats.EVENTS
        or not accepts_gzip(accept_encoding.decode("latin-1"))
    ):
        return reply
    body: Any
    if not isinstance(reply.body, bytes):
        body = _compress_stream(context, reply.body)
    elif len(reply.body) >= MIN_COMPRESSED_BYTES:
        body = await context.run_in_thread(gzip.compress, reply.body, _GZIP_LEVEL, mtime=0)
    else:
        return reply
    headers = {**reply.headers, "content-encoding": "gzip"}
    if "etag" in headers:
        headers["etag"] = f"W/{headers['etag']}"
    return replace(reply, body=body, headers=headers)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, or anything, with a weight above zero."""
    weights: dict[str, bool] = {}
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


async def _compress_stream(context: ServerContext, body: Any) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    try:
        async for piece in body:
            if found := await context.run_in_thread(compressor.compress, piece):
                yield found
        yield compressor.flush()
    finally:
        await body.aclose()
