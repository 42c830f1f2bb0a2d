"""Statements are prepared ahead of the batch that needs them.

DuckDB binds and plans a statement when it first meets it: a few milliseconds each, and the first batch over twenty
views has hundreds of them. Which ones follows from plans, state and rows in many places. So the maintainer notes the
statements that its batches came to need, in a file beside the state, and the next maintainer prepares those in the
background, between batches, from shortly after it is made.

    statements.json   {"fingerprint": …, "statements": [[text, [[input, schema], …]], …]}

The file is no truth: one that is missing, damaged or of another version is as good as none, and so is a statement that
cannot be prepared. Nobody waits for any of it but the batch that comes while one is being prepared.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.prepared_statements import StatementKey

STATEMENTS_FILE = "statements.json"
_START_DELAY = 0.1
"""Seconds after which it begins: a command that makes one batch has ended by then, or is within it."""
_SAVE_INTERVAL = 30.0
"""Seconds between two times that new statements are noted."""
_log = logging.getLogger("viewkeeper.batch")


class StatementWarmup:
    """Notes what `crew` has prepared in `directory`, and prepares what was noted there. `close` ends it."""

    def __init__(self, pool: DuckDBPool, directory: StateDirectory) -> None:
        self._pool = pool
        self._directory = directory
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._saved: frozenset[StatementKey] | None = None
        self._saved_count = 0
        self._last_saved = time.monotonic()
        self.done = threading.Event()
        """Set when nothing is left to prepare."""
        self._thread = threading.Thread(target=self._run, name="viewkeeper-preparing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the statement that is being prepared; what is new is noted. Again is no error."""
        self._stopping.set()
        self._idle.set()
        self._thread.join()
        self.save(force=True)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While a batch runs it prepares what it needs by itself, and nothing else is prepared; then it is noted."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()
        self.save()

    def save(self, force: bool = False) -> None:
        """Note what is new, now and then: it costs as much as a statement, and a maintainer that dies loses little."""
        made = self._pool.prepared_count
        if made == self._saved_count or (not force and time.monotonic() < self._last_saved + _SAVE_INTERVAL):
            return
        self._saved_count, self._last_saved = made, time.monotonic()
        known = self._pool.statement_keys()
        try:
            before = self._read_file() if self._saved is None else self._saved
            if known <= before:
                return
            self._write_file(known)
            self._saved = known
        except Exception as error:  # a full disk, a directory elsewhere that cannot be reached
            _log.debug("statements were not noted: %s", error)

    def _run(self) -> None:
        if self._stopping.wait(_START_DELAY):
            return
        try:
            self._saved = self._read_file()
            for statement in sorted(self._saved, key=lambda known: known[0]):
                self._idle.wait()
                if self._stopping.is_set():
                    return
                self._pool.prepare(statement)
        except Exception as error:  # then the batches do it
            _log.debug("statements were not prepared ahead: %s", error)
        finally:
            self.done.set()

    def _read_file(self) -> frozenset[StatementKey]:
        path = self._directory.fetch(STATEMENTS_FILE, refresh=not self._directory.is_local)
        try:
            said = json.loads(path.read_bytes())
            if said["fingerprint"] != expressions.fingerprint():
                return frozenset()
            return frozenset(
                (text, *((n, _schema_from_text(s)) for n, s in inputs)) for text, inputs in said["statements"]
            )
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return frozenset()

    def _write_file(self, statements: frozenset[StatementKey]) -> None:
        said = [[text, [[name, _schema_to_text(schema)] for name, schema in inputs]] for text, *inputs in statements]
        path = self._directory / STATEMENTS_FILE
        fresh = path.with_name(f".{STATEMENTS_FILE}")
        fresh.write_text(json.dumps({"fingerprint": expressions.fingerprint(), "statements": said}))
        fresh.replace(path)
        self._directory.upload(STATEMENTS_FILE)


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
