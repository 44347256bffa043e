"""The command `flint serve`."""
