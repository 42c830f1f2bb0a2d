"""The reusable redo: how a batch becomes visible whole in a store that changes only single rows atomically.

    files.py   the redo of a batch: everything that its commit will write, as one durable file
    steps.py   claim, write, publish, over one record that is replaced by comparing it first
    streams.py what batches did to views that are not stored, as files that the record lists

`hbase/commit.py` says what is HBase's about it: the cells, and the row that holds the record.
"""
