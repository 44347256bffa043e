"""Operators on tensors: arithmetic, shapes, products, indices."""
