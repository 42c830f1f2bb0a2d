"""Values of the data model: types, tables, deltas, keys, rows, the catalog. No I/O and no Spark."""
