"""Definitions that one process sends to the process that maintains the database, through the store."""
