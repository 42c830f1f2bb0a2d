"""The docs' programs that read a view with a plain HBase client, run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

import viewkeeper_hbase.thrift
from viewkeeper_hbase.devserver.processes import HBASE_PROGRAM
from viewkeeper_hbase.devserver.server import Server

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

PAGE = Path(__file__).parents[3] / "docs" / "stores.md"
IDL = Path(viewkeeper_hbase.thrift.__file__).with_name("hbase.thrift")


@pytest.fixture
def categories(open_db: Any) -> Any:
    """The view that the programs read, a batch behind what waits to be published."""
    db = open_db()
    db.sql("CREATE TABLE items (id BIGINT PRIMARY KEY, category STRING)")
    db.sql("CREATE MATERIALIZED VIEW by_category AS SELECT category, count(*) AS n FROM items GROUP BY category")
    db.put("items", [{"id": n, "category": "toys" if n % 3 else "books"} for n in range(10)])
    db.refresh()
    return db


def program(language: str, namespace: str) -> str:
    """The page's block in a language that reads `shop`, over a namespace of the test's own."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = (block for block in blocks if "shop:by_category.2" in block)
    return str(found.replace("shop:", f"{namespace}:"))


def test_the_example_in_plain_thriftpy2(categories: Any, hbase: Server, namespace: str, tmp_path: Path) -> None:
    text = program("text", namespace).replace("9090", str(hbase.port)).replace('"hbase.thrift"', repr(str(IDL)))
    (tmp_path / "read_view.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "read_view.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("6\n", "")


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no javac")
def test_the_example_in_java(categories: Any, hbase: Server, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "ReadView.java").write_text(program("java", namespace))
    classes = f"{hbase.data / 'conf'}:{HBASE_PROGRAM.fetch_jars()}/*:{tmp_path}"
    subprocess.run(["javac", "-cp", classes, "ReadView.java"], cwd=tmp_path, timeout=600, check=True)
    done = subprocess.run(
        [HBASE_PROGRAM.java_command(), f"-Dviewkeeper.log={tmp_path / 'java.log'}", "-cp", classes, "ReadView"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout == "6\n", done.stderr
