"""Workloads that may be shown to others: anonymised, resized and made up."""
