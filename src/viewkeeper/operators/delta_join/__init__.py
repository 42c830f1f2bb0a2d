"""Shared join paths: the lookups that several views have in common, over partial rows with late materialization."""
