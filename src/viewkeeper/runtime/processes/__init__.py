"""The driver lane with worker processes, each of which runs a part of the views."""
