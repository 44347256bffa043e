"""Scripts that run without Flint, on the machine that is measured."""
