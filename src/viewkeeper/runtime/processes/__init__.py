"""The driver lane with worker processes, each of which runs a partition of the views."""
