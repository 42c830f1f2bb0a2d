"""Answers packed for clients that take gzip: text of some length, whole or piece by piece.

Events are not packed: each must leave at once. Nor is Arrow: who asks for it wants to read it where it lies. A packed
answer says the same in other bytes, so its tag is a weak one.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from viewkeeper.server import formats
from viewkeeper.server.asked import Reply
from viewkeeper.server.serving import Serving

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
