"""An HBase on this machine, for tests and demos."""
