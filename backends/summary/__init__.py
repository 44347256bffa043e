"""What people ask of a workload first: a summary, why collectives are there, a graph."""
