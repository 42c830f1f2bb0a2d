"""The driver lane: operators run in this process, in one thread or several."""
