"""Parts of the aggregate operator: measures and accumulators, sums of groups, and the results read from them."""
