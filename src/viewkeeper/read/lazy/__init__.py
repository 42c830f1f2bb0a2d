"""Views whose rows are computed when they are read."""
