"""What changed in HBase: time windows of raw scans, and the change log made of them."""
