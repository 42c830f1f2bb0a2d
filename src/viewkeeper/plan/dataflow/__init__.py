"""The dataflow: the operators of all views as one graph, and what the views share in it."""
