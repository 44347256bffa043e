"""Meshes whose axes the partitioner is free to use, on every JAX: its default changes with releases."""

from __future__ import annotations

from jax.sharding import AbstractMesh, AxisType


def auto_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> AbstractMesh:
    """An abstract mesh with axes of type Auto."""
    return AbstractMesh(sizes, names, (AxisType.Auto,) * len(names))
