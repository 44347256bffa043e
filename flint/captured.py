"""Captured: what a frontend hands to a partitioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flint.mesh import Mesh


@dataclass(frozen=True)
class Captured:
    """A whole program for a mesh, before it is split over devices.

    `module` is StableHLO bytecode with debug locations, a Shardy mesh and shardings on the
    arguments (`sdy.sharding`) and constraints; function `main` is the step. Argument locations
    hold parameter names (`params['wq']`), and `jax.buffer_donor` or `tf.aliasing_output` mark
    donated arguments. `trip_counts` gives loops whose bound is not static, by name. `warnings`
    are sentences for the user about what could not be captured as asked for.
    """

    module: bytes
    mesh: Mesh
    name: str
    source: str
    trip_counts: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
