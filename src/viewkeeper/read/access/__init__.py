"""Ways to the rows that a condition asks for: a range of keys, an index, or all of them.

    terms      of a condition, the parts that are ranges of one column
    ranges     terms over the columns of a key, as ranges of key bytes
    choosing   which way is the cheapest, and why
    sources    one state to read from: pinned, or at a log position
    fetching   the rows, that way

What is found does not depend on the way: an index follows its table in batches, and whatever the log says came since
is laid over it, so a read by index shows the table as it is.
"""
