"""6. Commit: the numbered steps that publish a batch: its run files, its view changes, and its batch record."""
