"""EXPLAIN: a plan as text and as a diagram."""
