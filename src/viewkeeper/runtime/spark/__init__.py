"""The Spark lane: one job for each batch."""
