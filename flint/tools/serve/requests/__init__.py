"""What an engine is asked: a table of requests, from a log of others or from a generator."""
