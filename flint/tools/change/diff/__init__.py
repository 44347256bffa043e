"""Workloads and estimates side by side: what differs, why, and whether a budget holds."""
