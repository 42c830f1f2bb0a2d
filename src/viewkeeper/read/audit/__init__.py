"""Views compared with a recompute by Spark, and the checks of `vk doctor`."""
