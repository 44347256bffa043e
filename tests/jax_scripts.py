"""JAX scripts as people write them, run without devices by tests."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flint.frontends.jax_world.calls import Choice
from flint.frontends.jax_world.job import Job
from flint.frontends.jax_world.run import run
from flint.frontends.jax_world.runtime.chips import answers_of
from flint.ir.mesh import Mesh
from flint.steps.captured import Captured

#: Three layers of 64 x 64 in a training function; {body} is what happens after a step.
TRAIN = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def loss_of(layers, x, y):
    for w in layers:
        x = jax.nn.relu(x @ w)
    return jnp.mean(jnp.square(x - y))

def train(steps=100, ways={ways}):
    devices = mesh_utils.create_device_mesh((jax.device_count() // ways, ways))
    mesh = Mesh(devices, ("data", "model"))
    columns, whole = NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P())

    @functools.partial(jax.jit, out_shardings={{"layers": [columns] * 3, "step": whole}})
    def init(key):
        keys = jax.random.split(key, 3)
        layers = [jax.random.normal(k, (64, 64)) for k in keys]
        return {{"layers": layers, "step": jnp.zeros((), jnp.int32)}}

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(state["layers"], x, y)
        layers = jax.tree.map(lambda w, g: w - 0.1 * g, state["layers"], grads)
        return {{"layers": layers, "step": state["step"] + 1}}, loss

    @jax.jit
    def evaluate(layers, x, y):
        return loss_of(layers, x, y)

    state = init(jax.random.key(0))
    before = state
    for number in range(steps):
        x = jax.device_put(np.ones((512, 64), np.float32), NamedSharding(mesh, P("data")))
        state, loss = train_step(state, x, x)
{body}

train()
"""


def train_script(body: str = "", ways: int = 8) -> str:
    """`TRAIN` with lines of `body` after each step, on a mesh of `ways` model-parallel devices."""
    return TRAIN.format(body=textwrap.indent(textwrap.dedent(body) or "pass", " " * 8), ways=ways)


def captured(
    folder: Path,
    script: str,
    mesh: str = "64x8",
    *argv: str,
    chip: str = "h100",
    choice: Choice | None = None,
    hints: Mapping[str, Any] | None = None,
) -> Captured:
    """What `flint capture SCRIPT --world` captures, in this process."""
    file = folder / "train.py"
    file.write_text(textwrap.dedent(script))
    names = ("data", "model") if mesh.count("x") == 1 else ("data",)
    asked = Mesh.parse(mesh, None if "=" in mesh else names)
    job = Job(
        str(file),
        argv,
        "",
        asked,
        "=" in mesh,
        answers_of(chip),
        choice or Choice(),
        dict(hints or {}),
    )
    with _quiet():
        return run(job)


@contextmanager
def _quiet() -> Iterator[None]:
    """The script is in a file of its own, which no other import may find later."""
    modules = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - modules:
            if os.path.basename(getattr(sys.modules[name], "__file__", "") or "") == "train.py":
                del sys.modules[name]
