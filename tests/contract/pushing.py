"""A small HBase that pushes: the endpoint of a region server in a few lines, over the real wire.

Each cell that is written is an entry of a WAL; its number is the WAL's length. What `java/viewkeeper/push` does with a
real one is done here with that, so all of the receiving side runs without a JVM, and shipping can be stopped at will.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.contract.small_hbase import SmallHBase, Table

from viewkeeper_hbase.devserver.server import free_port
from viewkeeper_hbase.push import protocol, settings
from viewkeeper_hbase.push.protocol import Caller, Touched, Wire
from viewkeeper_hbase.push.settings import Agreed

PEER = "vk_small"
NAME = "small,16020,1"
WAL = "small%2C16020%2C1.1"


class Pushing:
    """A region server's endpoint. `epoch`: which life of the peer; `others`, `lost`: more lines of the list of
    queues, and those of WALs that are gone."""

    def __init__(self, small: SmallHBase, port: int) -> None:
        self.small, self.receiver = small, f"127.0.0.1:{port}"
        self.secret = b""
        self.epoch = "1"
        self.others: list[str] = []
        self.lost: list[str] = []
        self.entries: list[tuple[str, bytes, int]] = []
        self.loads: list[str] = []
        self.shipped = 0
        self.stopped = threading.Event()
        self.sending = threading.Event()
        self.sending.set()
        self._unwanted: frozenset[str] = frozenset()
        small.on_create = self._created

    def _created(self, name: str, table: Table) -> None:
        table.on_add = lambda row, at: self.entries.append((name, row, at))

    def agree(self, store: Any) -> None:
        """What `vk hbase push enable` does."""
        if store.note(settings.NOTE) is not None:
            return
        self.secret = settings.secret(settings.place(store.state_path), make=True)
        store.put_note(settings.NOTE, Agreed(PEER, (self.receiver,), ("small",)).to_json())
        for role, work in (("data", self._data), ("control", self._control)):
            threading.Thread(target=self._serve, args=(role, work), daemon=True).start()

    def _serve(self, role: str, work: Callable[[Wire, str], None]) -> None:
        while not self.stopped.is_set():
            with suppress(OSError, EOFError, protocol.Refused):
                caller = Caller(role, NAME, PEER, self.epoch)
                with closing(protocol.call(settings.address(self.receiver), self.secret, caller, timeout=60)) as opened:
                    work(opened, caller.epoch)
            time.sleep(0.01)

    def _data(self, opened: Wire, epoch: str) -> None:
        while not self.stopped.is_set() and epoch == self.epoch:
            self.sending.wait(0.01)
            upto = len(self.entries)
            if (self.shipped == upto and not self.loads) or not self.sending.is_set():
                time.sleep(0.002)
                continue
            frame = self._frame(self.entries[self.shipped : upto])
            if frame:
                opened.send(b"D" + frame)
                assert opened.receive() == b"A"
            self.shipped = upto

    def _frame(self, entries: list[tuple[str, bytes, int]]) -> bytes:
        tables = {}
        for name in {name for name, _, _ in entries} - self._unwanted:
            rows = [(row, at) for table, row, at in entries if table == name]
            times = np.array([at for _, at in rows], np.int64)
            tables[name] = Touched(pa.array([row for row, _ in rows], pa.binary()), times, times, int(times.max()))
        while self.loads:
            none = np.empty(0, np.int64)
            tables[self.loads.pop()] = Touched(pa.array([], pa.binary()), none, none, 0, loaded=True)
        return protocol.write(tables)

    def _control(self, opened: Wire, epoch: str) -> None:
        while not self.stopped.is_set() and epoch == self.epoch:
            opened.settimeout(0.2)
            try:
                asked, *lines = opened.receive().decode().split("\n")
            except TimeoutError:
                continue
            answer = [asked]
            if asked.startswith("M"):
                self._unwanted = frozenset(lines) or self._unwanted
                answer += [f"clock {time.time_ns() // 1_000_000}", f"{WAL} {len(self.entries)}"]
            elif asked.startswith("L"):
                answer += self.lost
            elif asked.startswith("W"):
                deadline, upto = time.monotonic() + int(lines[0]) / 1000, int(lines[1].rpartition(" ")[2])
                while self.shipped < upto and time.monotonic() < deadline:
                    time.sleep(0.001)
                own = f"queue {NAME} {PEER} "
                answer += [f"{own}{WAL} {self.shipped}", *(line for line in self.others if line.startswith(own))]
            else:
                answer += [f"live {NAME}", f"queue {NAME} {PEER} {WAL} {self.shipped}", *self.others]
            opened.send("\n".join(answer).encode())


def pushing(directory: Path, request: pytest.FixtureRequest) -> Pushing:
    """A small HBase that pushes, until the test ends."""
    small = SmallHBase()
    found = Pushing(small, free_port())
    request.addfinalizer(small.close)
    request.addfinalizer(found.stopped.set)
    return found
