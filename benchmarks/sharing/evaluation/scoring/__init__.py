"""What is said of a set of workloads: distances, novelty, use, leakage."""
