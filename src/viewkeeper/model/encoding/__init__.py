"""Encodings of keys and rows. The order of key bytes is the order of the key values."""
