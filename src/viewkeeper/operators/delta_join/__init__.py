"""Lookup paths that several views share, over partial rows whose columns are read late."""
