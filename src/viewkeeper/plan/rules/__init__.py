"""Rewrites and analyses of the logical plan."""
