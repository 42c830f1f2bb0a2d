"""Operators' state: immutable runs, arrangements made of them, lookups, and the manifest that lists them."""
