"""Resources of a process: memory, files, DuckDB connections. Each is bounded, and refuses use in a forked child."""
