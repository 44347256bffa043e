"""Layers that are rows of their own: found as repeated blocks of rows, and repeated more or less often."""
