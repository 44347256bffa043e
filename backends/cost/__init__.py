"""From a workload and a cluster to time and memory."""
