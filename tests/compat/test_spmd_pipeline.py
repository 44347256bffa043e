"""A pipeline written in JAX with `shard_map` and `ppermute` is one class of ranks.

Run as a script, this compares it with its layers run one after the other.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flint
from flint.backends.chakra import check, read, write
from flint.backends.chakra.schema import NodeType
from flint.ir.program import Kind, Program

pytest.importorskip("jax")
from tests.auto_mesh import auto_mesh

ROOT = Path(__file__).resolve().parents[2]
LAYERS, SEQ, DIM = 8, 16, 2560
MICROBATCH = SEQ * DIM * 2  # bytes of one sequence in bf16
#: Elements of a layer: qkv, out, up and down, and two norms.
LAYER = (4 + 8) * DIM * DIM + 2 * DIM


def example() -> ModuleType:
    path = ROOT / "examples" / "spmd_pipeline_jax.py"
    spec = importlib.util.spec_from_file_location("spmd_pipeline_jax", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def communications(program: Program) -> Counter[tuple[str, str, int]]:
    """How often each one runs: collective, group or route, bytes."""
    trips = program.trips
    found: Counter[tuple[str, str, int]] = Counter()
    for index in range(len(program)):
        row = program.row(index)
        if row.kind is Kind.COLLECTIVE:
            where = row.group if row.route is None else row.route
            found[row.collective.name, str(where), row.comm_bytes] += int(trips[index])
    return found


@pytest.mark.parametrize(("pipe", "data", "microbatches"), [(4, 8, 8), (8, 2, 3)])
def test_a_permute_for_each_tick_and_direction(
    pipe: int, data: int, microbatches: int, tmp_path: Path
) -> None:
    options = {"num_layers": LAYERS, "seq": SEQ, "microbatches": microbatches}
    step = example().train(auto_mesh((pipe, data), ("pipe", "data")), **options)
    workload = flint.trace(step, f"pipe={pipe},data={data}").workload
    assert [(c.name, c.where) for c in workload.classes] == [("all", {})]
    found = communications(workload.programs[0])
    ticks = microbatches + pipe - 1
    permutes = {key: count for key, count in found.items() if key[0] == "PERMUTE"}
    assert permutes == {
        ("PERMUTE", "pipe+1 (no wrap)", MICROBATCH): ticks,
        ("PERMUTE", "pipe-1 (no wrap)", MICROBATCH): ticks,
    }
    gradients = {k: n for k, n in found.items() if k[:2] == ("ALL_REDUCE", "data")}
    assert sum(gradients.values()) == len(step.args[0])  # once a step, not once a tick
    reduced = sum(count * size for (_, _, size), count in gradients.items())
    assert reduced == LAYERS // pipe * LAYER * 2
    assert found["ALL_REDUCE", "pipe,data", 4] == 1
    write(workload, tmp_path / "trace")
    report = check(tmp_path / "trace")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
    for position in (0, 1, pipe - 1):
        nodes = read(tmp_path / "trace" / f"trace.{position * data}.et").nodes
        kinds = Counter(node.type for node in nodes)
        neighbours = (position > 0) + (position < pipe - 1)
        assert kinds[NodeType.COMM_SEND] == kinds[NodeType.COMM_RECV] == ticks * neighbours


def compare() -> None:
    """Loss and new weights of 2 stages are those of the layers on one device."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    module = example()
    mesh = jax.make_mesh((2, 2), ("pipe", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    random = np.random.default_rng(3)
    shapes = {
        "attention_norm": (16,),
        "qkv": (16, 3, 2, 8),
        "out": (2, 8, 16),
        "mlp_norm": (16,),
        "up": (16, 64),
        "down": (64, 16),
    }
    weights = {n: jnp.asarray(random.normal(size=(4, *s)) * 0.3, "f4") for n, s in shapes.items()}
    x, target = (jnp.asarray(random.normal(size=(3, 4, 8, 16)), "bfloat16") for _ in range(2))

    def whole(weights: Any, x: Any, target: Any) -> Any:
        for i in range(4):
            x = jax.vmap(lambda x, i=i: module.layer(x, jax.tree.map(lambda w: w[i], weights)))(x)
        return jnp.mean(jnp.square(x.astype("f4") - target.astype("f4")))

    def loss(weights: Any, x: Any, target: Any) -> Any:
        specs = (P("pipe"), P(None, "data"), P(None, "data"))
        body = functools.partial(module.pipeline, stages=2)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(weights, x, target)

    cast = jax.tree.map(lambda w: w.astype("bfloat16"), weights)
    found, gradients = jax.jit(jax.value_and_grad(loss))(cast, x, target)
    expected, wanted = jax.jit(jax.value_and_grad(whole))(cast, x, target)
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    for name in shapes:
        a, b = (np.asarray(g[name], "f4").ravel() for g in (gradients, wanted))
        assert a @ b / np.sqrt((a @ a) * (b @ b)) > 0.999, name
        np.testing.assert_allclose(np.linalg.norm(a), np.linalg.norm(b), rtol=0.02)


@pytest.mark.long
def test_it_computes_what_its_layers_compute() -> None:
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, __file__]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    compare()
