"""Other processes in a test: a piece of Python that has the database open, and says what it sees line by line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

PATIENCE = 180.0
"""Seconds to wait for what another process does: it starts slowly on a busy machine, and only failures wait so long."""

_PROLOGUE = """
import json, os, sys, time
import viewkeeper as vk
from viewkeeper.errors import *
url, *args = sys.argv[1:]
def say(value): os.write(1, (json.dumps(value, default=str) + "\\n").encode())  # at once: threads say things too
def ask(): return json.loads(sys.stdin.readline())
"""


class Other:
    """A running process. `hear` gives the next line it says, `tell` answers it."""

    def __init__(self, code: str, *args: Any, env: dict[str, str] | None = None) -> None:
        program = _PROLOGUE + textwrap.dedent(code)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._lines: Queue[str | None] = Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=work, daemon=True) for work in (self._read_output, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # who is killed may leave half of one
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        """Its errors, as they come: a pipe that nobody reads stops who writes into it."""
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def receive(self, timeout: float = PATIENCE) -> Any:
        try:
            line = self._lines.get(timeout=timeout)
        except Empty:
            raise AssertionError(f"the process said nothing for {timeout} s") from None
        if line is None:
            self._readers[1].join(PATIENCE)
            raise AssertionError(f"the process ended: {''.join(self._errors)[-2000:]}")
        return json.loads(line)

    def receive_all(self) -> list[Any]:
        """Everything it says until it ends."""
        found = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            found.append(json.loads(line))
        return found

    def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def other(code: str, *args: Any, env: dict[str, str] | None = None) -> Iterator[Other]:
    process = Other(code, *args, env=env)
    try:
        yield process
    finally:
        process.close()


SHOP = """CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(12,2), PRIMARY KEY (item_id))"""
BY_CATEGORY = """CREATE MATERIALIZED VIEW by_category AS
                 SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category"""
RATIO = "CREATE MATERIALIZED VIEW ratio AS SELECT item_id, 100 / price AS q FROM items"


def item(item_id: int, category: str = "toys", price: Any = "1") -> dict[str, Any]:
    return {"item_id": item_id, "category": category, "price": str(price)}


def url_of(db: Any) -> str:
    return str(db.status().url)
