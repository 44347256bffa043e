"""Workloads that may be shown to others: anonymized, resized and made up."""
