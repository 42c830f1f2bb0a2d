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
from viewkeeper_hbase.push.protocol import Caller, PushConnection, TouchedRows
from viewkeeper_hbase.push.settings import PushAgreement

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
        self.extra_queue_lines: list[str] = []
        self.lost_wal_lines: list[str] = []
        self.entries: list[tuple[str, bytes, int]] = []
        self.loads: list[str] = []
        self.shipped_count = 0
        self.stopped = threading.Event()
        self.sending = threading.Event()
        self.sending.set()
        self._excluded_tables: frozenset[str] = frozenset()
        small.on_create = self._on_table_created

    def _on_table_created(self, name: str, table: Table) -> None:
        table.on_add = lambda row, at: self.entries.append((name, row, at))

    def enable_push(self, store: Any) -> None:
        """What `vk hbase push enable` does."""
        if store.note(settings.AGREEMENT_NOTE) is not None:
            return
        self.secret = settings.read_secret(settings.push_directory(store.state_path), create=True)
        store.put_note(settings.AGREEMENT_NOTE, PushAgreement(PEER, (self.receiver,), ("small",)).to_json())
        for role, work in (("data", self._serve_data), ("control", self._serve_control)):
            threading.Thread(target=self._serve, args=(role, work), daemon=True).start()

    def _serve(self, role: str, work: Callable[[PushConnection, str], None]) -> None:
        while not self.stopped.is_set():
            with suppress(OSError, EOFError, protocol.ProtocolError):
                caller = Caller(role, NAME, PEER, self.epoch)
                with closing(
                    protocol.connect_receiver(settings.parse_address(self.receiver), self.secret, caller, timeout=60)
                ) as opened:
                    work(opened, caller.epoch)
            time.sleep(0.01)

    def _serve_data(self, connection: PushConnection, epoch: str) -> None:
        while not self.stopped.is_set() and epoch == self.epoch:
            self.sending.wait(0.01)
            upto = len(self.entries)
            if (self.shipped_count == upto and not self.loads) or not self.sending.is_set():
                time.sleep(0.002)
                continue
            frame = self._encode_frame(self.entries[self.shipped_count : upto])
            if frame:
                connection.send(b"D" + frame)
                assert connection.receive() == b"A"
            self.shipped_count = upto

    def _encode_frame(self, entries: list[tuple[str, bytes, int]]) -> bytes:
        tables = {}
        for name in {name for name, _, _ in entries} - self._excluded_tables:
            rows = [(row, at) for table, row, at in entries if table == name]
            times = np.array([at for _, at in rows], np.int64)
            tables[name] = TouchedRows(pa.array([row for row, _ in rows], pa.binary()), times, times, int(times.max()))
        while self.loads:
            none = np.empty(0, np.int64)
            tables[self.loads.pop()] = TouchedRows(pa.array([], pa.binary()), none, none, 0, is_bulk_loaded=True)
        return protocol.encode_tables(tables)

    def _serve_control(self, connection: PushConnection, epoch: str) -> None:
        while not self.stopped.is_set() and epoch == self.epoch:
            connection.settimeout(0.2)
            try:
                asked, *lines = connection.receive().decode().split("\n")
            except TimeoutError:
                continue
            answer = [asked]
            if asked.startswith("M"):
                self._excluded_tables = frozenset(lines) or self._excluded_tables
                answer += [f"clock {time.time_ns() // 1_000_000}", f"{WAL} {len(self.entries)}"]
            elif asked.startswith("L"):
                answer += self.lost_wal_lines
            elif asked.startswith("W"):
                deadline, upto = time.monotonic() + int(lines[0]) / 1000, int(lines[1].rpartition(" ")[2])
                while self.shipped_count < upto and time.monotonic() < deadline:
                    time.sleep(0.001)
                own = f"queue {NAME} {PEER} "
                answer += [
                    f"{own}{WAL} {self.shipped_count}",
                    *(line for line in self.extra_queue_lines if line.startswith(own)),
                ]
            else:
                answer += [f"live {NAME}", f"queue {NAME} {PEER} {WAL} {self.shipped_count}", *self.extra_queue_lines]
            connection.send("\n".join(answer).encode())


def pushing(directory: Path, request: pytest.FixtureRequest) -> Pushing:
    """A small HBase that pushes, until the test ends."""
    small = SmallHBase()
    found = Pushing(small, free_port())
    request.addfinalizer(small.close)
    request.addfinalizer(found.stopped.set)
    return found
