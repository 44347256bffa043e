"""Operators of neural networks: layers, losses and what belongs to them."""
