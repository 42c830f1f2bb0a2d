"""TPC-DS data: Trino's generator writes text files, DuckDB converts them to one typed Parquet file per table.

Below scale 1, customer_demographics, which has 1.9 million rows at every scale, keeps only the rows that other tables
refer to: no query reads the rest. The generator's smallest scale is 0.01; below it only a share of the sales with their
returns, and of the inventory's items, is kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from viewkeeper.errors import StoreError
from viewkeeper.resources.java_programs import JavaProgram
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import connect
from viewkeeper.resources.process_budget import process_budget
from viewkeeper.workloads.tpcds import SCHEMAS

GENERATOR = JavaProgram(
    program="TPC-DS",
    version="1.4",
    package=__package__,
    variable="VIEWKEEPER_TPCDS_HOME",
    main_jar="tpcds-*.jar",
    megabytes=10,
)

_MIN_SCALE = 0.01
"""The smallest scale of the generator."""
_NUMBER_COLUMNS = {
    "store_sales": "ss_ticket_number",
    "store_returns": "sr_ticket_number",
    "catalog_sales": "cs_order_number",
    "catalog_returns": "cr_order_number",
    "web_sales": "ws_order_number",
    "web_returns": "wr_order_number",
    "inventory": "inv_item_sk",
}
_COLUMN = re.compile(r"(\w+) (BIGINT|INT|STRING|DATE|DECIMAL\(\d+,\d+\))[,\n]")


def columns_of(table: str) -> dict[str, str]:
    """A table's columns with their types, in order."""
    return dict(_COLUMN.findall(SCHEMAS[table]))


def generate(scale: float, directory: Path) -> Path:
    """Generate files at a scale factor, once for each directory."""
    target = directory / f"tpcds-{scale:g}"
    if (target / "done").exists():
        return target
    classes = f"{GENERATOR.fetch_jars()}/*"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix="text-") as text_directory:
        arguments = ["io.trino.tpcds.Driver", "--scale", f"{scale:g}", "--directory", text_directory, "--overwrite"]
        command = [GENERATOR.java_command(), "-Xmx512m", "-cp", classes, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise StoreError(
                f"The TPC-DS generator failed: {lines[-1] if lines else f'exit code {result.returncode}'}.",
                hint=f"{shutil.disk_usage(target).free // 10**6} MB are free in {target}.",
            )
        _convert_to_parquet(Path(text_directory), target, scale)
    (target / "done").touch()
    return target


def _convert_to_parquet(text: Path, target: Path, scale: float) -> None:
    with connect(MemoryBudget(process_budget()).with_spill_directory(text)) as connection:
        connection.execute("SET threads = 2").fetchall()
        for table in SCHEMAS:
            types = {c: "VARCHAR" if t == "STRING" else t for c, t in columns_of(table).items()}
            shape = f"columns = {types | {'_end': 'VARCHAR'}}, header = false, nullstr = '', encoding = 'latin-1'"
            source = f"read_csv('{text}/{table}.dat', delim = '|', quote = '', escape = '', {shape})"
            connection.execute(f"CREATE TABLE {table} AS SELECT * EXCLUDE (_end) FROM {source}").fetchall()
        if scale < _MIN_SCALE:
            for table, number in _NUMBER_COLUMNS.items():
                connection.execute(
                    f"DELETE FROM {table} WHERE {number} % 1000 >= {1000 * scale / _MIN_SCALE}"
                ).fetchall()
        if scale < 1:
            columns = [(t, c) for t in SCHEMAS for c in columns_of(t) if "_cdemo_" in c]
            referring = " UNION ALL ".join(f"SELECT {c} AS k FROM {t}" for t, c in columns)
            unreferenced = f"cd_demo_sk NOT IN (SELECT k FROM ({referring}) WHERE k IS NOT NULL)"
            connection.execute(f"DELETE FROM customer_demographics WHERE {unreferenced}").fetchall()
        for table in SCHEMAS:
            connection.execute(f"COPY {table} TO '{target}/{table}.parquet' (FORMAT parquet)").fetchall()
