"""Chips and networks: TOML files, presets, and what may stand in them."""
