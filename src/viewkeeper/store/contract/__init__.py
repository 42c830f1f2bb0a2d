"""The store contract: what a store must do, and the values that pass between a store and its callers."""
