"""`vk demo`: views over a stream of orders, on a live screen."""
