"""Execution traces read, strictly."""
