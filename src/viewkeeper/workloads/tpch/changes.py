"""TPC-H data and streams of changes.

A batch has the refresh functions of the specification, and more: RF1 new orders with their lines, RF2 deleted orders
with theirs, RF3 updated orders and lines, and changes of the dimensions (customer, part, supplier, partsupp, nation).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from viewkeeper.errors import MissingDependency
from viewkeeper.verify.benchmark_check import Benchmark
from viewkeeper.verify.reference_model import Change, ReferenceModel
from viewkeeper.workloads.tpch import SCHEMAS, views


def generate(scale: float, directory: Path) -> Path:
    """Generate TPC-H files at a scale factor with tpchgen-cli, once for each directory."""
    target = directory / f"tpch-{scale:g}"
    if (target / "done").exists():
        return target
    tool = Path(sys.executable).with_name("tpchgen-cli")
    command = str(tool) if tool.exists() else shutil.which("tpchgen-cli")
    if command is None:
        raise MissingDependency("tpchgen-cli is not installed.", hint="Run: pip install 'viewkeeper[bench]'.")
    target.mkdir(parents=True, exist_ok=True)
    arguments = ["parquet", "-s", f"{scale:g}", "--output-dir", str(target)]
    subprocess.run([command, *arguments], check=True, capture_output=True)
    (target / "done").touch()
    return target


class TpchModel(ReferenceModel):
    """The eight tables, and batches of changes."""

    schemas = SCHEMAS

    def __init__(self, files: Path, seed: int, threads: int = 2) -> None:
        super().__init__(files, seed, threads)
        self._next_order = int(self.rows("SELECT max(o_orderkey) AS k FROM orders")["k"][0].as_py()) + 1

    def batch(self) -> list[Change]:
        orders = max(5, self.count("orders") // 200)
        return [*self.orders_batch(orders, orders, orders), *self.dimensions_batch(orders)]

    def orders_batch(self, new: int, deleted: int, updated: int) -> list[Change]:
        """RF1, RF2 and RF3 over different orders, all with their lines."""
        sampled = self._sample_keys("orders", "o_orderkey", new + deleted + updated)
        inserted, deleted_keys, changed = np.split(sampled, [new, new + deleted])
        offset = self._next_order
        self._next_order += len(inserted)
        new_keys = {int(k): offset + i for i, k in enumerate(inserted)}
        self._register("made", inserted, np.array(list(new_keys.values()), np.int64))
        self._register("gone", deleted_keys)
        self._register("changed_keys", changed)
        customers = "(SELECT max(c_custkey) FROM customer)"
        orders = self.rows(
            f"""SELECT o.* REPLACE (m.v AS o_orderkey, 1 + (hash(m.v) % {customers})::BIGINT AS o_custkey,
                    (o_orderdate + (hash(m.v + 1) % 60)::INTEGER)::DATE AS o_orderdate)
                FROM orders o JOIN made m ON o_orderkey = m.k
                UNION ALL
                SELECT o.* REPLACE (1 + (hash(o_orderkey + {offset}) % {customers})::BIGINT AS o_custkey,
                    (o_totalprice + 1)::DECIMAL(15,2) AS o_totalprice,
                    ['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW'][1 + (hash(o_orderkey) % 5)::INTEGER]
                        AS o_orderpriority)
                FROM orders o JOIN changed_keys c ON o_orderkey = c.k"""
        )
        lines = self.rows(
            f"""SELECT l.* REPLACE (m.v AS l_orderkey, (l_shipdate + (hash(m.v + 2) % 30)::INTEGER)::DATE AS l_shipdate)
                FROM lineitem l JOIN made m ON l_orderkey = m.k
                UNION ALL
                SELECT l.* REPLACE (
                    ((hash(l_orderkey, l_linenumber, {offset}) % 11)::DECIMAL(15,2) / 100)::DECIMAL(15,2) AS l_discount,
                    (1 + hash(l_partkey, {offset}) % 50)::DECIMAL(15,2) AS l_quantity,
                    (l_receiptdate + (hash(l_orderkey, {offset}) % 7)::INTEGER)::DATE AS l_receiptdate,
                    ['A', 'N', 'R'][1 + (hash(l_linenumber, {offset}) % 3)::INTEGER] AS l_returnflag)
                FROM lineitem l JOIN changed_keys c ON l_orderkey = c.k"""
        )
        gone_orders = self.rows("SELECT o_orderkey FROM orders JOIN gone ON o_orderkey = k")
        gone_lines = self.rows("SELECT l_orderkey, l_linenumber FROM lineitem JOIN gone ON l_orderkey = k")
        for name in ("made", "gone", "changed_keys"):
            self.connection.execute(f"DROP TABLE {name}").fetchall()
        return [
            Change("orders", puts=orders),
            Change("lineitem", puts=lines),
            Change("orders", deletes=gone_orders),
            Change("lineitem", deletes=gone_lines),
        ]

    def scattered_batch(self, rows: int) -> list[Change]:
        """Update orders and lines at random, four lines for each order; delete some lines."""
        stamp = int(self.random.integers(1 << 30))
        orders, deleted_count = rows // 5, rows // 50
        self._register("picked", self._sample_keys("orders", "o_orderkey", orders))
        changed = self.rows(
            f"""SELECT o.* REPLACE ((o_totalprice + 1)::DECIMAL(15,2) AS o_totalprice,
                    (o_orderdate + (hash(o_orderkey, {stamp}) % 60)::INTEGER)::DATE AS o_orderdate)
                FROM orders o JOIN picked ON o_orderkey = k"""
        )
        self.connection.execute("DROP TABLE picked").fetchall()
        lines = self.rows(
            f"""SELECT l.* REPLACE (
                    ((hash(l_orderkey, l_linenumber, {stamp}) % 11)::DECIMAL(15,2) / 100)::DECIMAL(15,2) AS l_discount,
                    (1 + hash(l_orderkey, {stamp}) % 50)::DECIMAL(15,2) AS l_quantity,
                    (l_shipdate + (hash(l_partkey, {stamp}) % 7)::INTEGER)::DATE AS l_shipdate)
                FROM lineitem l ORDER BY hash(l_orderkey, l_linenumber, {stamp} + 1) LIMIT {rows - orders}"""
        )
        keys = lines.slice(0, deleted_count).select(["l_orderkey", "l_linenumber"])
        return [
            Change("orders", puts=changed),
            Change("lineitem", puts=lines.slice(deleted_count)),
            Change("lineitem", deletes=keys),
        ]

    def dimensions_batch(self, count: int, share: float = 0.05, *, nations: bool = True) -> list[Change]:
        """Updates and deletes in customer, part, supplier and partsupp: `count` rows of each, or a share of them if
        that is less; and one nation that moves to another region, with its customers and suppliers."""
        stamp = int(self.random.integers(1 << 30))
        updates = {
            "customer": f"c.* REPLACE ((c_acctbal - hash(c_custkey, {stamp}) % 500)::DECIMAL(15,2) AS c_acctbal, "
            f"(hash(c_custkey, {stamp}) % 25)::BIGINT AS c_nationkey)",
            "part": f"c.* REPLACE (1 + (hash(p_partkey, {stamp}) % 50)::INTEGER AS p_size, "
            f"CASE WHEN hash(p_partkey, {stamp}) % 3 = 0 THEN 'forest ' || p_name ELSE p_name END AS p_name)",
            "supplier": f"c.* REPLACE ((s_acctbal + hash(s_suppkey, {stamp}) % 90)::DECIMAL(15,2) AS s_acctbal, "
            f"(hash(s_suppkey, {stamp}) % 25)::BIGINT AS s_nationkey)",
            "partsupp": f"c.* REPLACE (1 + (hash(ps_partkey, {stamp}) % 900)::INTEGER AS ps_availqty, "
            "(ps_supplycost + 1)::DECIMAL(15,2) AS ps_supplycost)",
        }
        changes = []
        for table, columns in updates.items():
            key = self.keys[table][0]
            size = min(count, 1 + int(self.count(table) * share))
            self._register("picked", self._sample_keys(table, key, size))
            rows = self.rows(f"SELECT {columns} FROM {table} c JOIN picked ON {key} = k")
            changes.append(Change(table, puts=rows))
            if table in ("customer", "partsupp"):
                keys = ", ".join(self.keys[table])
                self.connection.execute("DROP TABLE picked").fetchall()
                self._register("picked", self._sample_keys(table, key, max(1, size // 10)))
                changes.append(Change(table, deletes=self.rows(f"SELECT {keys} FROM {table} JOIN picked ON {key} = k")))
            self.connection.execute("DROP TABLE picked").fetchall()
        if not nations:
            return changes
        nation = int(self.random.integers(25))
        renamed = self.rows(
            f"SELECT * REPLACE ((n_regionkey + 1) % 5 AS n_regionkey) FROM nation WHERE n_nationkey = {nation}"
        )
        return [*changes, Change("nation", puts=renamed)]

    def _sample_keys(self, table: str, key: str, count: int) -> np.ndarray:
        keys = np.sort(self.rows(f"SELECT DISTINCT {key} AS k FROM {table}")["k"].to_numpy())
        return self.random.choice(keys, min(count, len(keys)), replace=False)

    def _register(self, name: str, keys: np.ndarray, values: np.ndarray | None = None) -> None:
        columns = {"k": pa.array(keys, pa.int64())} | ({} if values is None else {"v": pa.array(values, pa.int64())})
        self.connection.register("given", pa.table(columns))
        self.connection.execute(f"CREATE TEMP TABLE {name} AS FROM given").fetchall()
        self.connection.unregister("given")


TPCH = Benchmark("tpch", views(), generate, TpchModel)
"""The benchmark of `vk verify tpch`."""
