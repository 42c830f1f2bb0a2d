"""One rule for each Catalyst expression class: its DuckDB text, when it can raise, and which forms are refused."""
