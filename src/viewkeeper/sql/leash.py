"""A query that runs for somebody else: what it may take, and how it is stopped.

A server's reader may ask for the product of two tables. So the answer has a limit that holds while it is made, not
afterwards, and whoever waited and does not any more (a time is over, a client has gone, the server ends) stops it, in
whichever engine it is.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from viewkeeper.errors import Timeout, TooLarge


class Ended(Timeout):
    """A statement that was stopped before it had done anything."""


class Leash:
    """Holds one statement. `rows`: how many an answer may have."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tag = f"viewkeeper-query-{secrets.token_hex(8)}"
        """Marks its jobs in Spark: who cancels those cancels no batch, and nobody else's query."""
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._stopped = False

    @contextmanager
    def held(self, end: Callable[[], None]) -> Iterator[None]:
        """While this lasts, `stop` calls `end`; what is then raised here is said in our words."""
        with self._lock:
            self._ends.append(end)
        try:
            self.check()
            yield
        except Exception as error:
            self.check(error)
            raise
        finally:
            with self._lock:
                self._ends.remove(end)

    def stop(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._stopped = True
            for end in self._ends:
                end()

    def check(self, error: Exception | None = None) -> None:
        if self._stopped:
            raise Ended("The statement was stopped: nobody waits for it any more.", hint="") from error

    def gathered(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """The pieces of an answer, unless they become too many."""
        found, count = [schema.empty_table()], 0
        for piece in pieces:
            found.append(piece.rename_columns(schema.names).cast(schema))
            count += piece.num_rows
            self.fits(count)
        return pa.concat_tables(found)

    def fits(self, count: int) -> None:
        if count > self.rows:
            raise TooLarge(f"The answer has more than {self.rows} rows.", hint="Write a LIMIT.")
