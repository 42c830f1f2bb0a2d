"""The Spark lane: one Spark job for each batch."""
