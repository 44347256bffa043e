"""Operators as profilers write them down, as events of a recording: shapes in, work out."""
