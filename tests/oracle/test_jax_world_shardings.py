"""A script on devices that are not there says what it says on eight real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from tests.jax_scripts import captured

SCRIPT = """
import functools, json, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
def put(shape, *spec): return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))

@functools.partial(jax.jit, donate_argnums=0)
def step(state, x):
    def loss(w):
        h = jax.nn.relu(x @ w["up"])
        h = jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P("data", "model")))
        return jnp.mean(jnp.square(h @ w["down"] + w["bias"]))
    value, grads = jax.value_and_grad(loss)(state["w"])
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    w = jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], m)
    return {"w": w, "m": m, "step": state["step"] + 1}, {"loss": value, "hidden": x @ w["up"]}

w = {"up": put((16, 32), None, "model"), "down": put((32, 16), "model"), "bias": put((16,))}
state = {"w": w, "m": jax.tree.map(jnp.zeros_like, w), "step": jnp.zeros((), jnp.int32)}
for _ in range(3):
    state, out = step(state, put((8, 16), "data"))
double = jax.jit(lambda t: jax.tree.map(lambda a: a * 2, t))((state, out))
eager = {"sum": state["w"]["up"].sum(axis=0), "cat": jnp.concatenate([state["w"]["up"]] * 2)}

def said(a):
    spec = a.sharding.spec if isinstance(a.sharding, NamedSharding) else None
    spec = None if spec is None else [list(s) if isinstance(s, tuple) else s for s in spec]
    while spec and spec[-1] is None: spec.pop()
    device = len(a.addressable_shards), a.addressable_data(0).shape
    return [a.shape, str(a.dtype), spec, a.weak_type, a.committed, a.is_fully_replicated, *device]

found = jax.tree.map(said, {"state": state, "out": out, "double": double, "eager": eager})
found["step"] = int(state["step"]), int(double[0]["step"])
Path(sys.argv[1]).write_text(json.dumps(found))
"""


def test_results_are_where_xla_puts_them(tmp_path: Path) -> None:
    real, virtual = tmp_path / "real.json", tmp_path / "virtual.json"
    file = tmp_path / "real.py"
    file.write_text(SCRIPT)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(file), str(real)]
    subprocess.run(command, check=True, env={**os.environ, **flags}, capture_output=True)
    captured(tmp_path, SCRIPT, "4x2", str(virtual))
    assert json.loads(virtual.read_text()) == json.loads(real.read_text())
