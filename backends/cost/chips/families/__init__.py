"""Families of chips, one module or package each: its table in cluster files, and its prices."""
