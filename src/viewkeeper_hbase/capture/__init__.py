"""Change capture for HBase: time windows of raw scans, and the change log derived from them."""
