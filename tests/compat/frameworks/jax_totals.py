"""What the suite of JAX libraries compares: totals of one device, and arrays on a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from flint.tracing import Trace
from tests.auto_mesh import auto_mesh

#: 8 x 4 devices, axes of type Auto.
MESH = auto_mesh((8, 4), ("data", "model"))
DATA = auto_mesh((8,), ("data",))


def shaped(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32, mesh: Any = MESH) -> Any:
    """An abstract array, sharded over `mesh`."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def replicated(tree: Any, mesh: Any = MESH) -> Any:
    """Every array of a pytree as an abstract one that every device holds whole."""
    return jax.tree.map(lambda a: shaped(a.shape, dtype=a.dtype, mesh=mesh), tree)


def matmul_flops(trace: Trace) -> int:
    """FLOPs of products of one device in a step."""
    (found,) = trace.summary().classes
    assert not found.unpriced, found.unpriced
    return found.matmul_flops


def collectives(trace: Trace) -> dict[tuple[str, str], int]:
    """Bytes that one device sends in a step, by kind and axes."""
    (found,) = trace.summary().classes
    return {(c.collective, c.over): c.comm_bytes for c in found.collectives}


def argument_bytes(trace: Trace) -> int:
    """Bytes of everything that one device is given."""
    (found,) = trace.summary().classes
    return found.parameter_bytes
