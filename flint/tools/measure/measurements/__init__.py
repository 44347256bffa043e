"""Readers of measurements: logs and tables of benchmarks, one file a format. Nothing is timed here."""
