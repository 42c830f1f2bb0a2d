"""The feed of an LMDB database: what happened after a position, how much of it waits, and for whom it is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper import faults
from viewkeeper.errors import ReadOnly, SnapshotGone, StoreError
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.store.arrow import column_names
from viewkeeper.store.base import Hold, Pending, Store, Touched
from viewkeeper.store.lmdb import log, records
from viewkeeper.store.lmdb.calls import delta
from viewkeeper.store.lmdb.environment import Environment
from viewkeeper.store.lmdb.net import net
from viewkeeper.store.lmdb.pinned import PinnedState


class LmdbFeed(Store):
    """The part of `LmdbStore` that reads and cuts the change log."""

    _environment: Environment
    _path: Path
    _open: bool
    _mode: str
    _catalog: Catalog

    def head(self) -> int:
        environment = self._live()
        with environment.read() as txn:
            return records.read_number(txn, environment.meta, records.HEAD)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        environment = self._live()
        wanted = column_names(table, columns)
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            table = self._shown(txn).reading(table)
            found = log.entries(txn, environment.log, after, upto, [table.id])
            deltas = [delta(table, images, wanted, 1) for images in log.gather(found)]
        return pa.concat_tables(deltas) if deltas else delta(table, log.NOTHING, wanted, 1)

    def net_changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table | None:
        if table.is_bag and not table.is_stored:
            return None  # its entries are deltas, which add up, not states that follow each other
        return self.part_of_changes(table, columns, after, upto, 0, 1)

    def part_of_changes(
        self, table: Table, columns: Sequence[str], after: int, upto: int, part: int, parts: int
    ) -> pa.Table:
        environment = self._live()
        wanted = column_names(table, columns)
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            table = self._shown(txn).reading(table)
            found = log.entries(txn, environment.log, after, upto, [table.id])
            pieces = list(log.gather(islice(found, part, None, parts)))
        return net(table, pieces, wanted)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Like `changes`, call by call: position, time, and the delta of a chunk of it."""
        environment = self._live()
        wanted = column_names(table, columns)
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            table = self._shown(txn).reading(table)
            found = [
                (entry.position, entry.time, log.images([entry]))
                for entry in log.entries(txn, environment.log, after, upto, [table.id])
            ]
        for position, when, images in found:
            yield position, when, delta(table, images, wanted, 1)

    def pending(self, after: int, tables: Sequence[int]) -> Pending:
        environment = self._live()
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            head = records.read_number(txn, environment.meta, records.HEAD)
            waiting = log.entries(txn, environment.log, after, head, tables)
            found = [(e.position, e.rows, e.time, len(e.body)) for e in waiting]
        if not found:
            return Pending(0, 0, None)
        positions, rows, times, sizes = zip(*found, strict=True)
        return Pending(len(set(positions)), sum(rows), times[0], positions[0], positions[-1], sum(sizes))

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        environment = self._live()
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            head = records.read_number(txn, environment.meta, records.HEAD)
            counted, last = 0, None
            for entry in log.entries(txn, environment.log, after, head, tables):
                if last is not None and entry.position != last and counted + entry.rows > rows:
                    return last
                counted, last = counted + entry.rows, entry.position
            return head

    def touched(self, after: int, upto: int) -> dict[int, Touched]:
        environment = self._live()
        with environment.read(buffers=True) as txn:
            self._check_kept(txn, after)
            return log.touched(txn, environment.log, after, upto)

    def log_bytes(self) -> int:
        environment = self._live()
        with environment.read() as txn:
            found = txn.stat(environment.log)
        pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return int(found["psize"] * pages)

    def truncate(self, upto: int) -> None:
        environment = self._writable()
        with environment.write() as txn:
            held = [hold.position for hold in records.holds(txn, environment.meta, time.time())]
            head = records.read_number(txn, environment.meta, records.HEAD)
            upto = min([upto, head, *held])
            if upto > records.read_number(txn, environment.meta, records.FLOOR):
                log.forget(txn, environment.log, upto)
                faults.point("commit.5.truncate.middle")
                records.put_number(txn, environment.meta, records.FLOOR, upto)

    def hold(self, name: str, position: int, expiry: float | None = None) -> None:
        """Keep the log after a position, until released or (seconds since 1970) expired. A name has one hold."""
        environment = self._writable()
        with environment.write() as txn:
            self._check_kept(txn, position)
            records.put_hold(txn, environment.meta, Hold(name, position, expiry))

    def release_hold(self, name: str) -> None:
        """Let go of a hold; an unknown name is no error."""
        environment = self._writable()
        with environment.write() as txn:
            records.delete_hold(txn, environment.meta, name)

    def holds(self) -> list[Hold]:
        """The holds that have not expired."""
        environment = self._live()
        with environment.read() as txn:
            return records.holds(txn, environment.meta, time.time())

    def pin(self) -> PinnedState:
        return PinnedState(self._live())

    def _check_kept(self, txn: Any, after: int) -> None:
        floor = records.read_number(txn, self._environment.meta, records.FLOOR)
        if after < floor:
            raise SnapshotGone(
                f"The change log of {self._path} begins after position {floor}, {after} was asked for.",
                hint="Start again from a full read.",
            )

    def _shown(self, txn: Any) -> Catalog:
        """The catalog as a transaction shows it, or later: its rows have no columns that this does not know."""
        known = self._catalog
        return known if records.catalog_version(txn, self._environment.meta) == known.version else self.catalog()

    def _live(self) -> Environment:
        if not self._open:
            raise StoreError(f"The database {self._path} is closed.", hint="Open it again.")
        return self._environment

    def _writable(self) -> Environment:
        environment = self._live()
        if self._mode == "r":
            raise ReadOnly(f"The database {self._path} was opened with mode='r'.", hint="Open it with mode='w'.")
        return environment
