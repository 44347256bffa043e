"""Partitioning, extraction and Program -> Program rewrites."""
