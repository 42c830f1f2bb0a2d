"""7. What conducts: batches, loads, schedules and definitions, over the published batch that `commit` owns."""
