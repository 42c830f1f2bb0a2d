"""From the logical plan to operators."""
