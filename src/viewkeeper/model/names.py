"""Names: the internal identifiers that occur beside a user's, and the quoting of identifiers in SQL text.

    ¤w  ¤h  ¤count  ¤row …      internal names, which begin with `¤`
    any other name              a user's name, in any script, with spaces, quotes and backticks; names of tables, views
                                and indexes have up to 200 bytes

The name of a user's column never begins with `¤`: `check_column_name` raises at CREATE and ALTER. So a generated
statement may put internal columns and aliases beside a user's columns. It takes internal names from this module or
begins them with `¤` (a letter for DuckDB; Spark requires backticks), and writes a user's name with `quoted` (DuckDB) or
`backticked` (Spark). Where users see a column of Viewkeeper beside their own (the weight of a change), `unused_name`
chooses its name.

Inside the dataflow, columns are named by position (`x0`, `l1`, `k2`), and users' names do not occur. Where a segment
reads a table, DuckDB resolves a name as a column before it looks for an alias of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.errors import BadStatement

INTERNAL_PREFIX = "¤"
"""The first character of internal names, and of no user's column. The character has no upper and lower case."""

WEIGHT = "¤w"
"""The weight column of a delta. `subscribe`, `readStream` and `writeStream` show it as `Table.weight_column`."""

HASH = "¤h"
"""In stored runs, the column with the 64-bit hash of a row's distribution key."""

COUNT = "¤count"
"""In stored rows, the hidden column of a bag view: the multiplicity of the row."""

ROW = "¤row"
"""The row number in a file that is loaded."""

ROW_INDEX = "¤place"
"""The index of a row before grouping or sorting."""

FIRST_ROW_INDEX = "¤first"
"""Beside `ROW_INDEX`: the index of the first row of the same partition."""

WEIGHT_SUM = "¤times"
"""A count or a weight during summation."""

EXPECTED, ACTUAL = "¤expected", "¤found"
"""The two sides of a comparison."""


MAX_NAME_BYTES = 200
"""Maximum length of a new table's, view's or index's name. The longest directory name of HBase is
`name.parameters.id`, with at most 255 bytes."""


def check_name_length(name: str, what: str) -> None:
    """Raise BadStatement if the name is too long for a new object. An existing object keeps a longer name."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise BadStatement(
            f"The name {name[:40]!r}… of a {what} has {size:,} bytes, {MAX_NAME_BYTES} is the most.",
            hint="Choose a shorter one.",
        )


def check_column_name(name: str, where: str) -> None:
    """Raise BadStatement if the name is not allowed for a column. `where` begins the message: the column's owner."""
    if name.startswith(INTERNAL_PREFIX):
        raise BadStatement(
            f"{where} {name}: names that begin with {INTERNAL_PREFIX} are kept for hidden columns.",
            hint="Choose another name; in a query, expression AS name.",
        )
    if not name.strip() or "\0" in name:
        raise BadStatement(
            f"{where} {name!r}: the name is empty or has a character zero.", hint="Name it: expression AS name."
        )


def unused_name(name: str, existing: Iterable[str]) -> str:
    """Return a public name that differs from `existing`: `name`, with `_` in front repeated until no column has it."""
    others = {other.lower() for other in existing}
    while name.lower() in others:
        name = f"_{name}"
    return name


def quoted(name: str) -> str:
    """Quote an identifier for DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def backticked(name: str) -> str:
    """Quote an identifier for Spark's SQL and for Viewkeeper's own statements."""
    return "`" + name.replace("`", "``") + "`"
