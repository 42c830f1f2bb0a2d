"""The layout of rows in HBase: cells, encodings of values, row readers, and predicates that HBase's scanners apply."""
