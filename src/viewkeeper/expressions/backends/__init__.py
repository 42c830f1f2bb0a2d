"""What an expression becomes: DuckDB SQL, a vectorised program over Arrow, or text for people."""
