"""Compile the logical plan to operators."""
