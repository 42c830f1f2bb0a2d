"""8. Reads: get, scan, read of tables and views."""
