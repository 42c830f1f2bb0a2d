"""Names: every identifier of our own that can stand beside a user's, and how any identifier is spelt in SQL text.

    ¤w  ¤h  ¤count  ¤row …      internal: they begin with `¤`
    anything else               a user's, in any script, with spaces, quotes and backticks; those of tables, views
                                and indexes have up to 200 bytes

The name of a user's column never begins with `¤`: `refuse` raises at CREATE and ALTER. So a generated statement may set
internal columns and aliases beside a user's columns. It takes internal names from here, or begins them with `¤` (DuckDB
takes it for a letter, Spark wants it in backticks), and spells a user's name by `quoted` (DuckDB) or `backticked`
(Spark). Where users see a column of Viewkeeper's beside their own (the weight of a change), `unused` finds its name.

Inside the dataflow columns are called by their position (`x0`, `l1`, `k2`) and users' names do not occur; where a
segment reads a table, DuckDB takes a column for what it is before it looks for an alias of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.errors import BadStatement

INTERNAL_PREFIX = "¤"
"""The first character of internal names, and of no user's column. It has no upper and lower case."""

WEIGHT = "¤w"
"""The weight column of a delta. In `subscribe`, `readStream` and `writeStream` it is called `Table.weight`."""

HASH = "¤h"
"""The column that holds the 64-bit hash of a row's distribution key; in stored runs."""

COUNT = "¤count"
"""The hidden column of a bag view: how often the row occurs; in stored rows."""

ROW = "¤row"
"""Beside the columns of a file that is loaded: the row's number in it."""

ROW_INDEX = "¤place"
"""Beside columns that are grouped or sorted: where the row stood."""

FIRST_ROW_INDEX = "¤first"
"""Beside `PLACE`: that of the first row of the same partition."""

WEIGHT_SUM = "¤times"
"""A count or a weight while it is added up."""

EXPECTED, ACTUAL = "¤expected", "¤found"
"""The two sides of a comparison."""


MAX_NAME_BYTES = 200
"""Bytes of a new table's, view's or index's name. HBase calls a directory `name.parameters.id` at most: 255 bytes."""


def check_name_length(name: str, what: str) -> None:
    """BadStatement if nothing new can be called so. What has a longer name already keeps it."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise BadStatement(
            f"The name {name[:40]!r}… of a {what} has {size:,} bytes, {MAX_NAME_BYTES} is the most.",
            hint="Choose a shorter one.",
        )


def check_column_name(name: str, where: str) -> None:
    """BadStatement if a column cannot be called so. `where` begins the message: what the column is of."""
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
    """A public name beside the columns `taken`: `name`, with one more `_` in front of it as long as a column has it."""
    others = {other.lower() for other in existing}
    while name.lower() in others:
        name = f"_{name}"
    return name


def quoted(name: str) -> str:
    """An identifier in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def backticked(name: str) -> str:
    """An identifier in Spark's SQL, and in ours."""
    return "`" + name.replace("`", "``") + "`"
