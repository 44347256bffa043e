"""Prefill and decode pools: what is sent between them, and the program of each."""
