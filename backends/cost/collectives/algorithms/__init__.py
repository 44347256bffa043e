"""One file for each algorithm; what it has in `ALGORITHMS` is taken wherever it is the fastest."""
