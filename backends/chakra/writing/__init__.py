"""A workload as execution traces."""
