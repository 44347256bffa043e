"""Shardings for a program that has none: what `flint propose` answers."""
