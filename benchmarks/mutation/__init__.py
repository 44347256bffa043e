"""Spoil one token of the product and see whether a test notices. Used by `benchmarks/mutants.py`."""
