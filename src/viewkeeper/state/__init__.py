"""Operator state: immutable runs, arrangements made of runs, lookups, and the manifest that lists the runs."""
