"""The parts of the aggregate operator: measures, sums of groups, and the results made of them."""
