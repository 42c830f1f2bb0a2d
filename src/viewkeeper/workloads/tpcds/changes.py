"""Changes on all 24 tables of TPC-DS: a batch updates, inserts and deletes rows in each table.

An updated row takes about a third of its columns from another row of its table, so that every value stays in its
column's domain. Columns that refer to another table are sometimes drawn from that table's keys, preferably from its
new rows: a new store gets sales in the batch that opens it. A new return belongs to an existing sale; new sales have
three lines per order.

Calendar columns that scalar subqueries require to be unique stay unique: a date's year, month, week and day are not
changed, and a new row of date_dim is a further day of its month, far in the future. Small tables lose only rows that a
batch has inserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.verify.benchmark_check import Benchmark
from viewkeeper.verify.reference_model import Change, ReferenceModel
from viewkeeper.workloads.tpcds import SCHEMAS, views
from viewkeeper.workloads.tpcds.data import columns_of, generate

_CHANGED_SHARE = 0.002
_MAX_CHANGED_ROWS = 300
_SMALL_TABLE_ROWS = 10
_LINES_PER_ORDER = 3
_COPIED_COLUMN_SHARE = 0.35
"""Share of an updated row's columns that come from another row."""
_CALENDAR = ("d_date", "d_year", "d_moy", "d_dom", "d_month_seq", "d_week_seq")
_CALENDAR_SHIFT_DAYS = 100_000
"""Days: beyond the calendar's last day."""
_SALES_OF_RETURNS = {"store_returns": "store_sales", "catalog_returns": "catalog_sales", "web_returns": "web_sales"}

_REFERENCED_TABLES = {
    "_date_sk": "date_dim",
    "_time_sk": "time_dim",
    "_item_sk": "item",
    "_customer_sk": "customer",
    "_cdemo_sk": "customer_demographics",
    "_hdemo_sk": "household_demographics",
    "_addr_sk": "customer_address",
    "_store_sk": "store",
    "_promo_sk": "promotion",
    "_call_center_sk": "call_center",
    "_catalog_page_sk": "catalog_page",
    "_ship_mode_sk": "ship_mode",
    "_warehouse_sk": "warehouse",
    "_reason_sk": "reason",
    "_web_page_sk": "web_page",
    "_web_site_sk": "web_site",
    "_income_band_sk": "income_band",
}


def references(table: str, key: tuple[str, ...]) -> Mapping[str, str]:
    """The tables that a table's columns refer to, by column."""
    own_key = key[0] if len(key) == 1 else ""
    return {
        column: other
        for column in columns_of(table)
        for suffix, other in _REFERENCED_TABLES.items()
        if column != own_key and column.endswith(suffix)
    }


class TpcdsModel(ReferenceModel):
    """The 24 tables, and batches of changes on all of them."""

    schemas = SCHEMAS

    def __init__(
        self,
        files: Path,
        seed: int,
        threads: int = 2,
        *,
        share: float = _CHANGED_SHARE,
        max_rows: int = _MAX_CHANGED_ROWS,
    ) -> None:
        """A batch changes `share` of each table's rows, at most `max_rows`; of a small table it changes one row."""
        super().__init__(files, seed, threads)
        self.share, self.max_rows = share, max_rows
        first = sorted(
            self.schemas, key=lambda t: len(self.keys[t])
        )  # referenced tables before those that refer to them
        self._table_order = [*(t for t in first if t not in _SALES_OF_RETURNS), *_SALES_OF_RETURNS]
        self._initial_last_keys = {t: self._last_key(t) for t in self._table_order if len(self.keys[t]) == 1}

    def batch(self) -> list[Change]:
        new_keys: dict[str, np.ndarray] = {}
        return [change for table in self._table_order for change in self._change_table(table, new_keys)]

    def _change_table(self, table: str, new_keys: dict[str, np.ndarray]) -> list[Change]:
        key = self.keys[table]
        names = ", ".join(key)
        keys = self.rows(f"SELECT {names} FROM {table} ORDER BY ALL")
        is_small = keys.num_rows < _SMALL_TABLE_ROWS and len(key) == 1
        row_count = 1 if is_small else min(self.max_rows, max(2, round(self.share * keys.num_rows)))
        order = self.random.permutation(keys.num_rows)
        updated, deleted = order[:row_count], order[row_count : row_count + row_count // 2]
        if is_small:
            inserted = np.flatnonzero(keys[key[0]].to_numpy() > self._initial_last_keys[table])
            deleted = inserted[: (len(inserted) + 1) // 2]
        updated = np.setdiff1d(updated, deleted)
        others, templates = (keys.take(self.random.integers(0, keys.num_rows, n)) for n in (len(updated), row_count))
        puts = self._update_rows(table, keys.take(updated), others, new_keys)
        inserts = self._make_rows(table, templates, new_keys)
        if len(key) == 1:
            new_keys[table] = inserts[key[0]].to_numpy()
        deletes = keys.take(np.sort(deleted))
        return [
            Change(table, puts=_first_by_key(pa.concat_tables([puts, inserts]), key)),
            Change(table, deletes=deletes),
        ]

    def _update_rows(
        self, table: str, keys: pa.Table, other_keys: pa.Table, new_keys: Mapping[str, np.ndarray]
    ) -> pa.Table:
        rows, other_rows = self._rows_by_key(table, keys), self._rows_by_key(table, other_keys)
        for column in rows.column_names:
            if column not in self.keys[table] and column not in _CALENDAR:
                is_copied = pa.array(self.random.random(rows.num_rows) < _COPIED_COLUMN_SHARE)
                rows = _set_column(rows, column, pc.if_else(is_copied, other_rows[column], rows[column]))
        return self._change_references(table, rows, 0.2, new_keys)

    def _make_rows(self, table: str, keys: pa.Table, new_keys: Mapping[str, np.ndarray]) -> pa.Table:
        key = self.keys[table]
        rows = self._change_references(table, self._rows_by_key(table, keys), 0.5, new_keys)
        count = rows.num_rows
        if table in _SALES_OF_RETURNS:
            sold = self.keys[_SALES_OF_RETURNS[table]]
            sales = self.rows(f"SELECT {', '.join(sold)} FROM {_SALES_OF_RETURNS[table]} ORDER BY ALL")
            sales = sales.take(self.random.integers(0, sales.num_rows, count))
            for column, sold_column in zip(key, sold, strict=True):
                rows = _set_column(rows, column, sales[sold_column])
        elif table == "inventory":
            for column in ("inv_item_sk", "inv_warehouse_sk"):
                rows = _set_column(rows, column, self._draw_keys(references(table, key)[column], count, new_keys))
        else:
            lines = 1 if len(key) == 1 else _LINES_PER_ORDER
            numbers = self._last_key(table) + 1 + np.arange(count) // lines
            rows = _set_column(rows, key[-1], pa.array(numbers, pa.int64()))
        if table == "date_dim":
            days = pc.add(rows["d_date"].cast(pa.int32()), pa.scalar(_CALENDAR_SHIFT_DAYS, pa.int32()))
            rows = _set_column(rows, "d_date", days.cast(pa.date32()))
            rows = _set_column(rows, "d_dom", pc.add(rows["d_dom"], pa.scalar(31, pa.int32())))
        return rows

    def _change_references(
        self, table: str, rows: pa.Table, share: float, new_keys: Mapping[str, np.ndarray]
    ) -> pa.Table:
        for column, other in references(table, self.keys[table]).items():
            if column not in self.keys[table]:
                moved = pa.array(self.random.random(rows.num_rows) < share)
                rows = _set_column(
                    rows, column, pc.if_else(moved, self._draw_keys(other, rows.num_rows, new_keys), rows[column])
                )
        return rows

    def _draw_keys(self, table: str, count: int, new_keys: Mapping[str, np.ndarray]) -> pa.Array:
        """Keys of a table; about half of them are new in this batch, if there are new ones."""
        keys = np.sort(self.rows(f"SELECT {self.keys[table][0]} AS k FROM {table}")["k"].to_numpy())
        new = new_keys.get(table, keys)
        is_new = self.random.random(count) < 0.5
        return pa.array(np.where(is_new, self.random.choice(new, count), self.random.choice(keys, count)), pa.int64())

    def _last_key(self, table: str) -> int:
        return int(self.rows(f"SELECT max({self.keys[table][-1]}) AS k FROM {table}")["k"][0].as_py())

    def _rows_by_key(self, table: str, keys: pa.Table) -> pa.Table:
        """The rows of these keys, in the keys' order."""
        placed = keys.append_column("_at", pa.array(np.arange(keys.num_rows)))
        self.connection.register("wanted", placed)
        names = ", ".join(self.keys[table])
        rows = self.rows(f"SELECT t.* FROM {table} t JOIN wanted USING ({names}) ORDER BY _at")
        self.connection.unregister("wanted")
        return rows


def _set_column(rows: pa.Table, column: str, values: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(column), rows.schema.field(column), values)


def _first_by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The first row of each key."""
    numbered = rows.select(list(key)).append_column("_at", pa.array(np.arange(rows.num_rows)))
    first = numbered.group_by(list(key)).aggregate([("_at", "min")])["_at_min"]
    return rows.take(np.sort(first.to_numpy()))


TPCDS = Benchmark("tpcds", views(), generate, TpcdsModel)
"""The benchmark of `vk verify tpcds`."""
