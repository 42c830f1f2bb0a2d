"""EXPLAIN: a view's maintenance plan as text and as a diagram."""
