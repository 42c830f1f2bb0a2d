"""Queries that the embedded DuckDB answers as Spark would, so that no JVM has to start.

    text ─▶ query      Spark's spelling translated to DuckDB's, parsed by DuckDB's own parser
         ─▶ typing     each expression with the type that Spark gives it, as in the views' plans
         ─▶ builder    FROM, WHERE, GROUP BY, HAVING, SELECT, ORDER BY, LIMIT as one DuckDB statement
         ─▶ run        the statement over the rows of the tables at one state

The expressions are rendered by the rules that maintain views (`expressions`), each of which is compared with Spark.
This engine therefore supports at most what those rules support. It raises `UnprovenQuery`, and Spark runs the query,
for everything without a proof that it means the same: float sums, whose last bits depend on the order of rows;
conversions that Spark makes silently; a condition that may fail for a row that Spark would never evaluate.
"""

from viewkeeper.sql.embedded.coercion import UnprovenQuery
from viewkeeper.sql.embedded.query import EmbeddedQuery, compile_embedded

__all__ = ["EmbeddedQuery", "UnprovenQuery", "compile_embedded"]
