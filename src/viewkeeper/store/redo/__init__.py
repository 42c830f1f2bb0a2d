"""The redo protocol: makes a batch visible atomically in a store that changes only single rows atomically.

    redo_file.py    the redo file of a batch: all writes of its commit, as one durable file
    claim.py        claim, write, publish, over one record that is replaced by compare-and-set
    delta_files.py  the deltas of views that are not stored, as files that the record lists

The HBase store adds the cells and the row that holds the record.
"""
