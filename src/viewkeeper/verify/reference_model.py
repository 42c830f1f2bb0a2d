"""The reference model: a benchmark's base tables beside the store, so that views can be checked by recomputing them.

The model is a plain DuckDB database that receives the same changes as the store. The benchmark decides what a batch
changes; the random numbers come from one seed, so that a run can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from viewkeeper.model.delta import normalize_chunks
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.resources.process_budget import process_budget


@dataclass(frozen=True)
class Change:
    """Rows to put into, or keys to delete from, one table."""

    table: str
    puts: pa.Table | None = None
    deletes: pa.Table | None = None

    @property
    def rows(self) -> int:
        return sum(t.num_rows for t in (self.puts, self.deletes) if t is not None)


def primary_keys(schemas: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The primary keys in CREATE TABLE statements."""
    return {
        table: tuple(re.findall(r"\w+", re.findall(r"PRIMARY KEY \(([^)]*)\)", text)[0]))
        for table, text in schemas.items()
    }


class ReferenceModel:
    """The expected base tables; every change goes through `apply`."""

    schemas: ClassVar[Mapping[str, str]]
    """CREATE TABLE statements by table name."""

    def __init__(self, files: Path, seed: int, threads: int = 2) -> None:
        self.files = files
        self.keys = primary_keys(self.schemas)
        self.connection = connect(MemoryBudget(process_budget()).with_spill_directory(files))
        self.connection.execute(f"SET threads = {threads}").fetchall()
        self.connection.execute("SET preserve_insertion_order = false").fetchall()
        for table in self.schemas:
            self.connection.execute(f"CREATE TABLE {table} AS FROM '{files}/{table}.parquet'").fetchall()
        self.random = np.random.default_rng(seed)

    def batch(self) -> list[Change]:
        """The next changes, about as many as verification needs; they are not applied yet."""
        raise NotImplementedError

    def close(self) -> None:
        self.connection.close()

    def rows(self, sql: str) -> pa.Table:
        return normalize_chunks(self.connection.sql(sql).to_arrow_table())

    def table(self, name: str) -> pa.Table:
        return self.rows(f"FROM {name}")

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py())

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for rows in (change.deletes, change.puts):
                if rows is not None and rows.num_rows:
                    self.connection.register("changed", rows)
                    matched = " AND ".join(f"t.{k} = c.{k}" for k in self.keys[change.table])
                    self.connection.execute(f"DELETE FROM {change.table} t USING changed c WHERE {matched}").fetchall()
                    if rows is change.puts:
                        self.connection.execute(f"INSERT INTO {change.table} BY NAME FROM changed").fetchall()
                    self.connection.unregister("changed")
