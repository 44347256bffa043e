"""Captures that belong to a repository: flint.toml, the cache, the lock file, and what CI is told."""
