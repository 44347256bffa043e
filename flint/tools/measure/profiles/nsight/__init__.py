"""Nsight Systems' SQLite exports as profiles, one for each device of each process."""

from flint.tools.measure.profiles.nsight.reader import read, recognizes

__all__ = ["read", "recognizes"]
