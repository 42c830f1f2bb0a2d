"""The commands of `vk`, by topic: statements, rows, views, verification."""
