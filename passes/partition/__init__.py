"""Sharding annotations into per-device collectives, in a worker process."""
