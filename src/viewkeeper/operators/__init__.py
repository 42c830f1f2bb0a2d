"""Operators: deltas in, deltas out, over arrangements. They compute with Arrow, numpy and DuckDB, without Spark."""
