"""4. Capture: reads the store's change log, or scans tables, and returns one consolidated delta for each table."""
