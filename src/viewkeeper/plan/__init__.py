"""Planning: SQL → Catalyst's optimised plan → logical plan → dataflow of keyed operators, cut into rounds."""
