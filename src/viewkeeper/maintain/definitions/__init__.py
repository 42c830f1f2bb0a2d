"""What CREATE, ALTER and DROP do to the catalog and to the state."""
