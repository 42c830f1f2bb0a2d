"""8. Reads: get, scan and read of tables and views."""
