"""Whole models: what Flint lowers of a step computes the loss and every gradient of PyTorch.

The StableHLO of `capture_torch`, forward and backward on one device, is compiled by JAX for the CPU
and run on the weights and inputs that PyTorch ran on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from flint.frontends.torch_export import capture_torch
from flint.ir.mesh import Mesh
from flint.passes.locations import decode_location
from flint.passes.mlir import make_context
from flint.steps.step import TorchStep
from tests.torch_zoo import HUGGINGFACE, OWN, Kind, without_dropout

pytestmark = pytest.mark.long

#: The largest error of the loss, relative to it, and of a gradient, relative to its largest value.
LOSS_ERROR, GRADIENT_ERROR = 1e-5, 2e-4
#: Products of grouped experts exist in bfloat16 only (8 bits), off the CPU. Batch norm over the 2 x 1
#: x 1 values in the last stage divides by small deviations, which takes double precision.
DTYPES = dict.fromkeys(("mixtral_like", "hf_mixtral"), torch.bfloat16) | {"resnet50": torch.float64}
LOOSER = dict.fromkeys(("mixtral_like", "hf_mixtral"), 4e-2)
#: Gradients smaller than this, relative to the largest of the model, are compared with it: some are
#: exactly zero (of a bias of keys) and computed as rounding errors.
NOISE = 1e-4


def read_main(bytecode: bytes) -> tuple[list[str], list[str]]:
    """Names of the arguments of `main`, and where its results go (`result[1]['wq.weight']`)."""
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        main = next(f for f in module.body if f.operation.attributes["sym_name"].value == "main")
        arguments = [decode_location(a.location)[0] for a in main.regions[0].blocks[0].arguments]
        results = [a["jax.result_info"].value for a in main.operation.attributes["res_attrs"]]
    return arguments, results


def run_on_cpu(bytecode: bytes, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the program returns, by name of the parameter; the loss by "loss"."""
    from jaxlib import xla_client

    arguments, results = read_main(bytecode)
    [device] = jax.devices("cpu")[:1]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.executable_build_options.use_shardy_partitioner = True
    # A program runs once: machine code that is made soon, not code that is fast.
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    with jax.enable_x64(True):
        program = device.client.compile_and_load(
            bytecode, xla_client.DeviceList((device,)), options
        )
        found = program.execute_sharded(
            [jax.device_put(values[name], device) for name in arguments]
        ).disassemble_into_single_device_arrays()
    named = {}
    for path, [array] in zip(results, found, strict=True):
        if path == "result[0][0]":
            named["loss"] = np.asarray(array, np.float64)
        elif gradient := re.fullmatch(r"result\[1\]\['(.+)'\]", path):
            named[gradient[1]] = np.asarray(array, np.float64)
    return named


def as_array(tensor: Any) -> Any:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return jax.numpy.asarray(tensor.float().numpy(), jax.numpy.bfloat16)
    return tensor.numpy().copy()


def named_values(module: Any, kind: Kind, inputs: Any, targets: Any) -> dict[str, Any]:
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    tensors |= zip(inspect.signature(module.forward).parameters, inputs, strict=False)
    tensors |= zip(list(inspect.signature(kind.loss).parameters)[1:], targets, strict=False)
    return {name: as_array(tensor) for name, tensor in tensors.items()}


def in_type(kind: Kind, tensors: Any) -> Any:
    dtype = DTYPES.get(kind.name, torch.float32)
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


@pytest.mark.parametrize("kind", (*OWN, *HUGGINGFACE), ids=lambda kind: kind.name)
def test_loss_and_gradients_are_those_of_pytorch(kind: Kind) -> None:
    if not kind.installed:
        pytest.skip(f"{kind.library} is not installed")
    module, inputs, targets = kind.on("cpu")
    module = without_dropout(module)
    if kind.name in DTYPES:
        module.to(DTYPES[kind.name])
    inputs, targets = in_type(kind, inputs), in_type(kind, targets)
    step = TorchStep(module, inputs, loss=kind.loss, loss_args=targets, platform="cpu")
    captured = capture_torch(step, Mesh.parse("data=1"))
    values = named_values(module, kind, inputs, targets)  # before a step changes statistics

    loss = kind.loss(module(*inputs), *targets)
    loss.backward()
    found = run_on_cpu(captured.module, values)
    assert float(found.pop("loss")) == pytest.approx(
        loss.item(), rel=LOOSER.get(kind.name, LOSS_ERROR)
    )
    expected = {
        n: p.grad.double().numpy() for n, p in module.named_parameters() if p.grad is not None
    }
    assert set(found) == set(expected)
    largest = max(np.abs(g).max() for g in expected.values())
    worst = {n: relative_error(found[n], g, NOISE * largest) for n, g in expected.items()}
    bar = LOOSER.get(kind.name, GRADIENT_ERROR)
    assert not {name: error for name, error in worst.items() if error > bar}


def relative_error(found: Any, expected: Any, noise: float) -> float:
    """The largest difference, relative to the largest value."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), noise))
