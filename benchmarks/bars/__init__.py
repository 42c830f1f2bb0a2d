"""The bars of `benchmarks/tpch.py`, one module each: every `measure` returns what it found as JSON.

`setting` has the databases and the data, `check` compares views with recompute, `report` draws the tables.
"""
