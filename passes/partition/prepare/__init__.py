"""Rewrites of modules before shardings are propagated."""
