"""Statement warm-up: prepares SQL statements in the background, before the batch that needs them.

DuckDB binds and plans a statement on its first use, which takes a few milliseconds; the first batch over twenty views
has hundreds of statements. Which statements a batch needs depends on plans, state and rows in many modules, so they
cannot be listed in advance. The maintainer therefore saves the statements that its batches used, in a file next to the
state. The next maintainer prepares them in the background, between batches, starting shortly after it was created.

    statements.json   {"fingerprint": …, "statements": [[text, [[input, schema], …]], …]}

The file is only a cache: a missing or damaged file, a file of another version, and a statement that cannot be prepared
are ignored. Only a batch that begins while a statement is being prepared waits, for that one statement.
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
"""Seconds before warm-up begins: a command that runs a single batch has ended by then, or is within the batch."""
_SAVE_INTERVAL = 30.0
"""Minimum seconds between two saves of new statements."""
_log = logging.getLogger("viewkeeper.batch")


class StatementWarmup:
    """Saves the statements that `pool` has prepared to `directory`, and prepares the ones saved there earlier.

    `close` ends the background thread.
    """

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
        """Set when all saved statements are prepared."""
        self._thread = threading.Thread(target=self._run, name="viewkeeper-preparing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the statement that is being prepared, and save new statements. Calling it twice is no error."""
        self._stopping.set()
        self._idle.set()
        self._thread.join()
        self.save(force=True)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause warm-up while a batch runs and prepares its own statements; afterwards save the new ones."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()
        self.save()

    def save(self, force: bool = False) -> None:
        """Save new statements, at most every `_SAVE_INTERVAL` seconds unless forced.

        A save costs as much as preparing a statement, and a maintainer that crashes loses little.
        """
        count = self._pool.prepared_count
        if count == self._saved_count or (not force and time.monotonic() < self._last_saved + _SAVE_INTERVAL):
            return
        self._saved_count, self._last_saved = count, time.monotonic()
        statements = self._pool.statement_keys()
        try:
            saved = self._read_file() if self._saved is None else self._saved
            if statements <= saved:
                return
            self._write_file(statements)
            self._saved = statements
        except Exception as error:  # a full disk, or an object store that cannot be reached
            _log.debug("statements were not noted: %s", error)

    def _run(self) -> None:
        if self._stopping.wait(_START_DELAY):
            return
        try:
            self._saved = self._read_file()
            for statement in sorted(self._saved, key=lambda key: key[0]):
                self._idle.wait()
                if self._stopping.is_set():
                    return
                self._pool.prepare(statement)
        except Exception as error:  # then the batches prepare their statements themselves
            _log.debug("statements were not prepared ahead: %s", error)
        finally:
            self.done.set()

    def _read_file(self) -> frozenset[StatementKey]:
        path = self._directory.fetch(STATEMENTS_FILE, refresh=not self._directory.is_local)
        try:
            content = json.loads(path.read_bytes())
            if content["fingerprint"] != expressions.fingerprint():
                return frozenset()
            return frozenset(
                (text, *((name, _schema_from_text(schema)) for name, schema in inputs))
                for text, inputs in content["statements"]
            )
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return frozenset()

    def _write_file(self, statements: frozenset[StatementKey]) -> None:
        entries = [[text, [[name, _schema_to_text(schema)] for name, schema in inputs]] for text, *inputs in statements]
        path = self._directory / STATEMENTS_FILE
        temporary = path.with_name(f".{STATEMENTS_FILE}")
        temporary.write_text(json.dumps({"fingerprint": expressions.fingerprint(), "statements": entries}))
        temporary.replace(path)
        self._directory.upload(STATEMENTS_FILE)


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
