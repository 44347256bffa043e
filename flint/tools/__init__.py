"""Tools that stand on the core: with this folder deleted, the core still captures, checks and estimates."""
