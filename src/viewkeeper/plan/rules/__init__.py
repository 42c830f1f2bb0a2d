"""Rewrites of the logical plan."""
