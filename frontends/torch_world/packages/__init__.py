"""Packages that recorded programs import and nobody has installed: how others stand in for them."""
