"""3. Plans: SQL to Catalyst to our nodes to a dataflow of keyed operators, cut into distribution rounds."""
