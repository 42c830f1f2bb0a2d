"""A request as the endpoints see it, and what they answer."""

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
from viewkeeper.server.context import Serving
from viewkeeper.server.errors import Refused
from viewkeeper.server.http import formats
from viewkeeper.server.http.paths import name_of

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
_TAKEN = {"accept-encoding": "gzip"}


@dataclass(frozen=True)
class Reply:
    """An answer; a body that is no bytes is sent piece by piece."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    media: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Asked:
    """One request. Parameters that the endpoint does not know are an error: a misspelt one must not be ignored."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, role: str, known: frozenset[str]) -> None:
        self.scope, self.role = scope, role
        self._receive = receive
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._parameters: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(scope["query_string"].decode("ascii"), True, bool(scope["query_string"]), errors="strict")
        except ValueError:
            raise Refused(400, "The query of the URL is not percent-encoded UTF-8.", "") from None
        for name, value in pairs:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise Refused(400, f"There is no parameter {name[:40]!r} here.", f"Parameters: {there}.")
            self._parameters.setdefault(name, []).append(value)
        if self.one("numbers") not in (None, "exact", "native"):
            raise Refused(400, "numbers is exact or native.", "")

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

    def many(self, name: str) -> list[str]:
        return self._parameters.get(name, [])

    def one(self, name: str) -> str | None:
        found = self._parameters.get(name, [])
        if len(found) > 1:
            raise Refused(400, f"{name} is there {len(found)} times.", "Give it once.")
        return found[0] if found else None

    def number(self, name: str, default: int, *, most: int) -> int:
        text = self.one(name)
        if text is None:
            return min(default, most)
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise Refused(400, f"{name} is {text[:40]!r}.", f"Give a number from 1 to {most}.")
        return int(text)

    def seconds(self, name: str, default: float, most: float) -> float:
        text = self.one(name)
        if text is None:
            return min(default, most)
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) > most:
            raise Refused(400, f"{name} is {text[:40]!r}.", f"Give a number of seconds, up to {most:g}.")
        return float(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.one(name)
        if text not in (None, "true", "false"):
            raise Refused(400, f"{name} is {str(text)[:40]!r}.", "It is true or false.")
        return default if text is None else text == "true"

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    def has(self, tag: str | None) -> bool:
        """Whether the client has what this tag stands for."""
        given = self._headers.get("if-none-match")
        if tag is None or given is None:
            return False
        return tag in (part.strip().removeprefix("W/") for part in given.split(","))

    @property
    def has_any(self) -> bool:
        """Whether the client has something, whatever that is: it wants to know only if there is nothing."""
        return bool(self._headers.get("if-none-match", "").strip() == "*")

    # -- the body -----------------------------------------------------------------------------------------------------

    async def body(self, most: int, seconds: float) -> bytes:
        """All of it, unpacked, which must not be larger nor take longer than allowed."""
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise Refused(
                415, f"A body in {encoding[:40]!r} is not understood.", "Send it as it is, or as gzip.", _TAKEN
            )
        body = await self._packed(most, seconds)
        if encoding == "identity":
            return body
        return await asyncio.get_running_loop().run_in_executor(None, unpacked, body, most)

    async def _packed(self, most: int, seconds: float) -> bytes:
        length = self._headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "The request ended in the middle of its body.", "")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, f"The body did not arrive within {seconds:g} s.", "") from None

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T:
        """What takes a while is given up when the client goes. After the body."""
        task, left = asyncio.create_task(work), asyncio.create_task(self._until_left())
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Refused(400, "The client has gone.", "")
            return await task
        finally:
            left.cancel()
            task.cancel()

    async def _until_left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def unpacked(body: bytes, most: int) -> bytes:
    """The bytes in a gzip file; no more than allowed are ever made of it."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(400, f"The body is no gzip: {error}.", "") from None
    if len(found) > most:
        raise _too_large(most)
    return found


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"The body has more than {most} bytes.", hint="Send it in several requests: each is one write.")


# Answers packed for clients that take gzip: text of some length, whole or piece by piece.
#
# Events are not packed: each must leave at once. Nor is Arrow: who asks for it wants to read it where it lies. A packed
# answer says the same in other bytes, so its tag is a weak one.


LEAST = 1_400
"""Bytes: what fits one packet does not get there sooner."""

_LEVEL = 1
"""Of 1 to 9: rows as JSON become a fifth, at 150 MB a second; 6 would take three times as long to leave a sixth."""
_TEXT = (formats.JSON, formats.LINES, "text/")


async def packed(serving: Serving, reply: Reply, accepted: bytes) -> Reply:
    """The answer as a client with this Accept-Encoding gets it."""
    media = reply.media or ""
    if not media.startswith(_TEXT) or media == formats.EVENTS or not takes_gzip(accepted.decode("latin-1")):
        return reply
    body: Any
    if not isinstance(reply.body, bytes):
        body = _pieces(serving, reply.body)
    elif len(reply.body) >= LEAST:
        body = await serving.call(gzip.compress, reply.body, _LEVEL, mtime=0)
    else:
        return reply
    headers = {**reply.headers, "content-encoding": "gzip"}
    if "etag" in headers:
        headers["etag"] = f"W/{headers['etag']}"
    return replace(reply, body=body, headers=headers)


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, or anything, and not with a weight of zero."""
    weights: dict[str, bool] = {}
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


async def _pieces(serving: Serving, body: Any) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    try:
        async for piece in body:
            if found := await serving.call(packer.compress, piece):
                yield found
        yield packer.flush()
    finally:
        await body.aclose()
