"""TPC-DS: its 24 tables with their primary keys, and its 99 queries, the second benchmark beside TPC-H.

The texts are those in Apache Spark's own tests (org.apache.spark:spark-sql_2.13:4.2.0:tests, Apache-2.0); 14, 23, 24
and 39 are two queries each, a and b, so that there are 103 views. `queries/README.md` lists what was changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources

_PACKAGE_FILES = resources.files(__name__)

SCHEMAS: Mapping[str, str] = {
    text.split()[2]: text
    for text in re.findall(
        r"CREATE TABLE .*?\)(?=;\n)", _PACKAGE_FILES.joinpath("schema.sql").read_text("utf-8"), re.DOTALL
    )
}
"""CREATE TABLE statements by table name."""

_NUMBER = re.compile(r"q0?(\d+)([ab]?)\.sql")

QUERIES: Mapping[str, str] = {
    f"{found[1]}{found[2]}": path.read_text("utf-8").strip()
    for path in sorted(_PACKAGE_FILES.joinpath("queries").iterdir(), key=lambda p: p.name)
    if (found := _NUMBER.fullmatch(path.name))
}
"""The queries by number: 1 to 99, and 14a, 14b, 23a, 23b, 24a, 24b, 39a, 39b."""


def views(numbers: Iterable[str] = QUERIES) -> dict[str, str]:
    """These queries by the names of their views: q1, …, q14a, …"""
    return {f"q{number}": QUERIES[number] for number in numbers}
