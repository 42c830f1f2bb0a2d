"""The page at `/`: the files of this folder, read once.

There is no build step and nothing from other servers: the Content-Security-Policy allows only this server, and no
inline script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from viewkeeper.server.http.request import Reply

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class StaticFiles:
    """The files by their path."""

    def __init__(self) -> None:
        folder = Path(__file__).parent
        self._files: dict[bytes, Reply] = {}
        for file in sorted(folder.iterdir()):
            if file.suffix in _MEDIA_TYPES:
                body = file.read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
                reply = Reply(200, body, _MEDIA_TYPES[file.suffix], {**_HEADERS, "etag": tag})
                self._files[f"/page/{file.name}".encode()] = reply
        if b"/page/index.html" in self._files:
            self._files[b"/"] = self._files[b"/page/index.html"]

    def find(self, method: str, path: bytes, headers: Mapping[bytes, bytes]) -> Reply | None:
        """The requested file; without its bytes, if the browser has them."""
        found = self._files.get(path) if method in ("GET", "HEAD") else None
        has = headers.get(b"if-none-match", b"").decode("latin-1").removeprefix("W/")
        return found if found is None or has != found.headers["etag"] else Reply(304, headers=found.headers)
