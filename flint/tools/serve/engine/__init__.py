"""One engine: its rules as data, its paged cache, and what it computes in each pass."""
