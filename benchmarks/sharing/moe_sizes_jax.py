"""Mixtral with other numbers of experts, heads and widths: `examples/mixtral_jax.py`, its sizes as options.

flint capture benchmarks/sharing/moe_sizes_jax.py --mesh 4x2 --set experts=16 --set num_layers=8
"""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

_SOURCE = Path(__file__).parents[2] / "examples/mixtral_jax.py"


def _example():
    spec = importlib.util.spec_from_file_location("mixtral_example", _SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@flint.entry(axes=("data", "expert"))
def train(
    mesh: AbstractMesh,
    *,
    dispatch: str = "alltoall",
    remat: str = "full",
    seq: int = 4096,
    batch: int = 0,
    capacity: float = 1.25,
    num_layers: int = 8,
    experts: int = 8,
    dim: int = 4096,
    ffn_dim: int = 14_336,
    heads: int = 32,
    kv_heads: int = 8,
) -> flint.Step:
    """One training step."""
    m = _example()
    c = m.Config(
        num_layers=num_layers,
        capacity=capacity,
        dispatch=dispatch,
        num_experts=experts,
        dim=dim,
        ffn_dim=ffn_dim,
        num_heads=heads,
        num_kv_heads=kv_heads,
    )

    def array(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    devices = mesh.shape["data"] * mesh.shape["expert"]
    tokens = array((batch or devices, seq), jnp.int32, m.BATCH, None)
    moments = {name: m.abstract_params(c, mesh, jnp.float32) for name in ("m", "v")}
    args = (m.abstract_params(c, mesh, jnp.bfloat16), moments, array((), jnp.int32), tokens, tokens)
    step = functools.partial(m.train_step, c=c, mesh=mesh, remat=remat)
    return flint.Step(step, args, donate_argnums=(0, 1, 2), name="mixture")
