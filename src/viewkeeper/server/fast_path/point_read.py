"""The fast path of the most frequent request: one row by its key, as JSON, without parameters.

The reply is computed as soon as the headers have arrived, and written at once: no task, no queue, no second packet. Any
other request (another format, a level, an error of any kind) gets None here, and the application answers it.
"""

from __future__ import annotations

import time
from typing import Any

from viewkeeper.errors import ViewkeeperError
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.read.rows import check_key
from viewkeeper.read.suspension import refuse_suspended
from viewkeeper.server.auth import AllowedHosts
from viewkeeper.server.context import ServerContext
from viewkeeper.server.http import json_values
from viewkeeper.server.http.paths import key_of, name_of

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
CACHE_CONTROL = (b"cache-control", b"private, no-cache")
VARY = (b"vary", b"accept, accept-encoding, authorization")
COMMON_HEADERS = b"".join(b"%s: %s\r\n" % header for header in (CACHE_CONTROL, VARY, *SECURITY_HEADERS))
_OK_RESPONSE = (
    b"HTTP/1.1 200 OK\r\n%scontent-type: application/json\r\n" + COMMON_HEADERS + b"%scontent-length: %d\r\n\r\n%s"
)
_NOT_MODIFIED_RESPONSE = b"HTTP/1.1 304 Not Modified\r\n%s" + COMMON_HEADERS + b"%s\r\n"
_JSON_ACCEPTS = (None, b"*/*", b"application/json")
_UNSUPPORTED_HEADERS = frozenset((b"transfer-encoding", b"content-length", b"upgrade", b"expect"))


class FastPointReads:
    """Answers plain reads by key for a connection."""

    def __init__(self, context: ServerContext, hosts: AllowedHosts) -> None:
        self._context, self._hosts = context, hosts
        self._prefix = context.store.uuid[:8].encode()
        self._catalog: Catalog | None = None
        self._tables: dict[bytes, tuple[Table, Any]] = {}

    def answer(self, url: bytes, header_list: list[tuple[bytes, bytes]], date: bytes) -> bytes | None:
        """The whole response, or None if the application must answer the request."""
        parts = url.split(b"/")
        if len(parts) < 5 or parts[1] != b"v1" or parts[3] != b"rows" or b"?" in url or parts[2] == b"views":
            return None
        started, headers, context = time.perf_counter(), dict(header_list), self._context
        if headers.get(b"accept") not in _JSON_ACCEPTS or not _UNSUPPORTED_HEADERS.isdisjoint(headers):
            return None
        if context.db._reads.has_shown_ahead:
            return None
        try:
            self._hosts.check_request(headers)
            if context.keyring is not None:
                kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
                if kind.lower() != "bearer":
                    return None
                context.keyring.role(token.strip())
            table, convert = self._find_table(parts[2])
            position = context.hub.last_change_position(table)
            tag = b""
            if position is not None and self._catalog is not None:
                name = b'"%s-%d-%d-j"' % (self._prefix, self._catalog.version, position)
                tag = b"etag: %s\r\n" % name
                given_tag = headers.get(b"if-none-match")
                if given_tag == name:
                    return self._record_metrics(3, started, _NOT_MODIFIED_RESPONSE % (date, tag))
                if given_tag is not None and (b"," in given_tag or not given_tag.startswith(b'"')):
                    return None  # several tags, * or W/: the application parses those
            row = context.store.get(table, check_key(table, key_of(table, [p.decode("ascii") for p in parts[4:]])))
        except (ViewkeeperError, UnicodeDecodeError):
            return None
        if row is None:
            return None
        body = json_values.encode_row(row, convert)
        return self._record_metrics(2, started, _OK_RESPONSE % (date, tag, len(body), body))

    def _find_table(self, name: bytes) -> tuple[Table, Any]:
        catalog = self._context.store.catalog()
        if catalog is not self._catalog:
            self._catalog, self._tables = catalog, {}
        found = self._tables.get(name)
        if found is None:
            table = catalog.table(name_of(name.decode("ascii")))
            refuse_suspended(catalog.find(table.name))
            found = self._tables[name] = (table, json_values.column_converters(table.external_schema, False))
        return found

    def _record_metrics(self, status: int, started: float, response: bytes) -> bytes:
        metrics = self._context.metrics
        metrics.reads["get"].inc()
        metrics.requests[status].inc()
        metrics.request_seconds.observe(time.perf_counter() - started)
        return response
