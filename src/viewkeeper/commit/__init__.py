"""6. Commit: the numbered steps that turn a batch's files and view changes into the published state."""
