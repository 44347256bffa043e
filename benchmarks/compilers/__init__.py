"""Captured programs against what XLA's GPU and TPU compilers make of them. See `__main__`."""
