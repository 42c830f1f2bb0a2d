"""Targets of expressions: DuckDB SQL, vectorised evaluation over Arrow, and text for users."""
