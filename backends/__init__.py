"""Workloads out: traces and reports."""
