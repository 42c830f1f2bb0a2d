"""Queries that the embedded DuckDB answers as Spark would, so that no JVM has to start.

    text ─▶ syntax    Spark's spelling in DuckDB's, and DuckDB's own parser's tree of it
         ─▶ typing    each expression with the type that Spark gives it, as the views' plans have them
         ─▶ block     FROM, WHERE, GROUP BY, HAVING, SELECT, ORDER BY, LIMIT as one DuckDB statement
         ─▶ run       over the rows of the tables at one state

The expressions are rendered by the table that maintains views (`expressions`), whose every entry is compared with
Spark. So what is known here is what that table knows, and less: whatever has no proof of meaning the same (float sums,
whose last bits depend on the order of rows; conversions that Spark makes silently; a condition that may fail for a row
that Spark would never look at) is `NotProven`, and Spark's to answer.
"""

from viewkeeper.sql.embedded.coercion import UnprovenQuery
from viewkeeper.sql.embedded.query import EmbeddedQuery, compile_embedded

__all__ = ["EmbeddedQuery", "UnprovenQuery", "compile_embedded"]
