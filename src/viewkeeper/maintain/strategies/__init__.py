"""Views with a cut of their own: refreshed at intervals, or after every write call."""
