"""The driver lane: operators run in this process, by one thread or several."""
