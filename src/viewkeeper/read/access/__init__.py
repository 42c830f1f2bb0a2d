"""Access paths to the rows of a request: a range of keys, an index, or a scan.

    predicates       the sargable terms of a condition: ranges of one column
    key_ranges       terms over the columns of a key, as ranges of key bytes; key histograms
    path             the cheapest access path, and why
    request          a request checked: columns, order, limit
    requested_rows   a request read at one state
    scan             the rows by the chosen path

The result does not depend on the path. An index follows its table in batches; the changes that the log has since the
batch are applied to what the index returns, so a read by index shows the table as it is.
"""
