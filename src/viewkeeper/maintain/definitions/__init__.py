"""Definitions: what CREATE, ALTER and DROP change in the catalog and in the state."""
