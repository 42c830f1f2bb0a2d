"""Lazy and virtual views: views whose rows are computed when they are read."""
