"""How rows lie in HBase: cells, encodings of values, predicates that its scanners apply."""
