"""A repository with a small model and a flint.toml, for tests of what belongs to a project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flint.cli import app

MODEL = '''"""Gated layers in a scan, trained with gradient descent."""
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint

HIDDEN = 256
UP = (None, None, "model")
DOWN = (None, "model", None)


def layer(x, w):
    with jax.named_scope("mlp"):
        h = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
        return x + h @ w["down"]


def loss(params, x):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def step(params, x):
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@flint.entry(axes=("data", "model"))
def train(mesh):
    def array(shape, *spec):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    wide, narrow = (4, HIDDEN, 4 * HIDDEN), (4, 4 * HIDDEN, HIDDEN)
    params = {"gate": array(wide, *UP), "up": array(wide, *UP), "down": array(narrow, *DOWN)}
    return flint.Step(step, (params, array((32, 64, HIDDEN), "data", None, None)))
'''
PROJECT = """
clusters = ["h100-dgx"]

[capture.train]
model = "model.py"
mesh = "4x2"
"""


def flint(*arguments: str) -> Any:
    """What a command says in the current folder."""
    return CliRunner().invoke(app, list(arguments), prog_name="flint")


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository, whoever has configured what."""
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *own, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )
    return done.stdout


def commit(folder: Path, message: str) -> None:
    """Commit all files."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for what git and Python keep there."""
    found = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    skipped = {".git", "__pycache__"}
    return {
        str(name): path.read_bytes() for name, path in found.items() if not skipped & {*name.parts}
    }
