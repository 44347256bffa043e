"""The level structure: bodies exchanged for generated ones with the same totals."""
