"""7. Maintenance: batches, backfills, schedules and view definitions, over the published batch that `commit` owns."""
