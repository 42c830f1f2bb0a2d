"""The nouns: types, tables, deltas, keys, rows, the catalog. No I/O and no Spark in here."""
