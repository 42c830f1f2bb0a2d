"""2. Operators: deltas in, deltas out, over arrangements. Arrow and numpy; no Spark in here."""
