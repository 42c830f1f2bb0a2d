"""One rule for each Catalyst expression class: its DuckDB text, when it can raise, what is refused."""
