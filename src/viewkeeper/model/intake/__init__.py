"""Strict conversion of a user's rows, keys and scalars to a table's types."""
