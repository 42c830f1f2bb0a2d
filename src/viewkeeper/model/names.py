"""Names: every identifier of our own that can stand beside a user's, and how any identifier is spelt in SQL text.

    _w  _h  _count  _row …      ours: they begin with `_`
    anything else               the user's, in any script, with spaces, quotes and backticks; those of tables, views
                                and indexes have up to 200 bytes

A column of a table or view cannot be called as ours are: `refuse` says so at CREATE and ALTER. That is the whole law.
A generated statement may then set columns and aliases of ours beside a user's columns; all it must do is to take its
words from here, or begin them with `_`, and to spell a user's name by `quoted` (DuckDB) or `backticked` (Spark).

Inside the dataflow columns are called by their position (`x0`, `l1`, `k2`) and users' names do not occur; where a
segment reads a table, DuckDB takes a column for what it is before it looks for an alias of the same name.
"""

from __future__ import annotations

from viewkeeper.errors import BadStatement

MARK = "_"
"""What names of ours begin with, and no user's column does."""

WEIGHT = "_w"
"""The weight column of a delta. Users meet it: in `subscribe`, `readStream` and the rows of `writeStream`."""

HASH = "_h"
"""The column that holds the 64-bit hash of a row's distribution key; in stored runs."""

COUNT = "_count"
"""The hidden column of a bag view: how often the row occurs; in stored rows."""

ROW = "_row"
"""Beside the columns of a file that is loaded: the row's number in it."""

PLACE = "_place"
"""Beside columns that are grouped or sorted: where the row stood."""

FIRST = "_first"
"""Beside `PLACE`: that of the first row of the same partition."""

TIMES = "_times"
"""A count or a weight while it is added up."""

EXPECTED, FOUND = "_expected", "_found"
"""The two sides of a comparison."""


LONGEST = 200
"""Bytes of a new table's, view's or index's name. HBase calls a directory `name.parameters.id` at most: 255 bytes."""


def refuse_long(name: str, what: str) -> None:
    """BadStatement if nothing new can be called so. What has a longer name already keeps it."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > LONGEST:
        raise BadStatement(
            f"The name {name[:40]!r}… of a {what} has {size:,} bytes, {LONGEST} is the most.",
            hint="Choose a shorter one.",
        )


def refuse(name: str, where: str) -> None:
    """BadStatement if a column cannot be called so. `where` begins the message: what the column is of."""
    if name.startswith(MARK):
        raise BadStatement(
            f"{where} {name}: names that begin with _ are kept for hidden columns.",
            hint="Choose another name; in a query, expression AS name.",
        )
    if not name.strip() or "\0" in name:
        raise BadStatement(
            f"{where} {name!r}: the name is empty or has a character zero.", hint="Name it: expression AS name."
        )


def quoted(name: str) -> str:
    """An identifier in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def backticked(name: str) -> str:
    """An identifier in Spark's SQL, and in ours."""
    return "`" + name.replace("`", "``") + "`"
