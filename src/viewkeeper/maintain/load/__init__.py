"""Backfill of views, repair of their state, and suspension of views that fail."""
