"""Data, queries and streams of changes of the benchmarks: TPC-H, TPC-DS, a shop."""
