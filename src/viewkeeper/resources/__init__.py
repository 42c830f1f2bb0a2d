"""What a process owns: memory, files, DuckDB connections. Each is bounded, and refused in a forked child."""
