"""4. Capture: from the store's change log, or a scan, to one consolidated delta for each table."""
