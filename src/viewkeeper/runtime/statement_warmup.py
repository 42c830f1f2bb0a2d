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
from viewkeeper.resources.directory import Directory
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.prepared_statements import Known

FILE = "statements.json"
_AFTER = 0.1
"""Seconds after which it begins: a command that makes one batch has ended by then, or is within it."""
_BETWEEN = 30.0
"""Seconds between two times that new statements are noted."""
_log = logging.getLogger("viewkeeper.batch")


class Preparing:
    """Notes what `crew` has prepared in `directory`, and prepares what was noted there. `close` ends it."""

    def __init__(self, crew: Crew, directory: Directory) -> None:
        self._crew = crew
        self._directory = directory
        self._ending = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._noted: frozenset[Known] | None = None
        self._looked = 0
        self._last = time.monotonic()
        self.done = threading.Event()
        """Set when nothing is left to prepare."""
        self._thread = threading.Thread(target=self._run, name="viewkeeper-preparing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the statement that is being prepared; what is new is noted. Again is no error."""
        self._ending.set()
        self._free.set()
        self._thread.join()
        self.note(now=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While a batch runs it prepares what it needs by itself, and nothing else is prepared; then it is noted."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()
        self.note()

    def note(self, now: bool = False) -> None:
        """Note what is new, now and then: it costs as much as a statement, and a maintainer that dies loses little."""
        made = self._crew.made
        if made == self._looked or (not now and time.monotonic() < self._last + _BETWEEN):
            return
        self._looked, self._last = made, time.monotonic()
        known = self._crew.known()
        try:
            before = self._read() if self._noted is None else self._noted
            if known <= before:
                return
            self._write(known)
            self._noted = known
        except Exception as error:  # a full disk, a directory elsewhere that cannot be reached
            _log.debug("statements were not noted: %s", error)

    def _run(self) -> None:
        if self._ending.wait(_AFTER):
            return
        try:
            self._noted = self._read()
            for statement in sorted(self._noted, key=lambda known: known[0]):
                self._free.wait()
                if self._ending.is_set():
                    return
                self._crew.prepare(statement)
        except Exception as error:  # then the batches do it
            _log.debug("statements were not prepared ahead: %s", error)
        finally:
            self.done.set()

    def _read(self) -> frozenset[Known]:
        path = self._directory.fetch(FILE, again=not self._directory.is_local)
        try:
            said = json.loads(path.read_bytes())
            if said["fingerprint"] != expressions.fingerprint():
                return frozenset()
            return frozenset((text, *((n, _schema(s)) for n, s in inputs)) for text, inputs in said["statements"])
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return frozenset()

    def _write(self, known: frozenset[Known]) -> None:
        said = [[text, [[name, _text(schema)] for name, schema in inputs]] for text, *inputs in known]
        path = self._directory / FILE
        fresh = path.with_name(f".{FILE}")
        fresh.write_text(json.dumps({"fingerprint": expressions.fingerprint(), "statements": said}))
        fresh.replace(path)
        self._directory.save(FILE)


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
