"""The commands of `vk`, by what they are for: statements, rows, views, proofs."""
