"""PyTorch's settings for products of f32, which both ways of capturing write down, and autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flint
from flint.backends.cost.chips.kernels import KernelKind
from flint.frontends.torch_precision import convolution_precision, matmul_precision
from flint.frontends.torch_private import FakeTensorMode
from flint.frontends.torch_world.device import autocast
from flint.frontends.torch_world.program.cuda_kernels import PRECISION
from flint.frontends.torch_world.program.work import OF_CUDNN, PRODUCTS, work_of
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.frontends.torch_world.record.recording import Event, TensorInfo
from flint.frontends.torch_world.record.storages import dtype_name
from flint.steps.step import WorldStep
from flint.tracing import trace_script


@pytest.fixture(autouse=True)
def default_settings() -> Iterator[None]:
    """Each test begins with PyTorch's settings, and leaves them."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.conv.fp32_precision = "tf32"


def test_products_are_exact_and_convolutions_are_not_unless_told() -> None:
    assert (matmul_precision(), convolution_precision()) == ("ieee", "tf32")
    torch.set_float32_matmul_precision("high")
    assert matmul_precision() == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = False
    assert matmul_precision() == "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert convolution_precision() == "ieee"


def exported(module: Any, shape: tuple[int, ...], dtype: Any = torch.float32) -> flint.Trace:
    x = torch.empty(shape, device="meta", dtype=dtype)
    return flint.trace(flint.TorchStep(module, (x,)), "1")


def products(trace: flint.Trace) -> list[str]:
    return [trace.program.products[i] for i in trace.program.product.tolist() if i]


def test_a_module_is_exported_with_the_settings_of_its_process() -> None:
    linear = torch.nn.Linear(1024, 1024, bias=False, device="meta")
    found = [exported(linear, (4096, 1024))]
    torch.set_float32_matmul_precision("high")
    found.append(exported(linear, (4096, 1024)))
    assert [products(t) for t in found] == [["float32:ieee"], ["float32:tf32"]]
    types = [t.estimate("h100-dgx").dtype for t in found]
    assert types == ["f32", "tf32"]
    assert found[0].estimate("v5e").step_time_ns == found[1].estimate("v5e").step_time_ns
    narrow = exported(linear.bfloat16(), (4096, 1024), torch.bfloat16)
    assert products(narrow) == ["bfloat16"]


def test_convolutions_are_exported_in_tf32() -> None:
    convolution = torch.nn.Conv2d(64, 64, 3, bias=False, device="meta")
    found = exported(convolution, (16, 64, 32, 32))
    assert products(found) == ["float32:tf32"]
    for profile in ("xla-gpu", "inductor"):
        assert found.estimate("h100-dgx", profile=profile).dtype == "tf32"


def test_partitioners_keep_settings() -> None:
    linear = torch.nn.Linear(512, 512, bias=False, device="meta")
    x = torch.empty((512, 512), device="meta")
    step = flint.TorchStep(linear, (x,), loss=lambda out: out.sum())
    trace = flint.trace(step, "data=2")
    assert set(products(trace)) == {"float32:ieee"}


def event(op: str, *dtypes: str, **attributes: Any) -> Event:
    inputs = tuple(TensorInfo(i, (8, 8), dtype, 256) for i, dtype in enumerate(dtypes))
    return Event(op, inputs, (TensorInfo(9, (8, 8), dtypes[0], 256),), attributes=attributes)


@pytest.mark.parametrize(
    ("op", "dtypes", "how", "expected"),
    [
        ("aten.mm.default", ("f32", "f32"), "ieee", "f32:ieee"),
        ("aten.mm.default", ("f32", "f32"), "tf32", "f32:tf32"),
        ("aten.mm.default", ("bf16", "bf16"), "tf32", "bf16"),
        ("aten.addmm.default", ("f32", "bf16", "bf16"), "tf32", "bf16"),
        ("aten.linear.default", ("bf16", "bf16", "f32"), "ieee", "bf16"),
        ("aten._scaled_mm.default", ("f8E4M3FN", "f8E4M3FN"), "ieee", "f8E4M3FN"),
        (
            "aten._scaled_mm.default",
            ("f8E4M3FN", "f8E4M3FN", "f32", "f32"),
            "ieee",
            "f8E4M3FN:block",
        ),
        ("aten._int_mm.default", ("i8", "i8"), "ieee", "i8"),
        ("aten.add.Tensor", ("f32", "f32"), "tf32", ""),
    ],
)
def test_a_recorded_operator_multiplies_its_factors(
    op: str, dtypes: tuple[str, ...], how: str, expected: str
) -> None:
    assert work_of(event(op, *dtypes, **{PRECISION: how})).product == expected


def test_which_operators_multiply() -> None:
    assert {"mm", "addmm", "bmm", "linear", "_grouped_mm", "_flash_attention_forward"} <= PRODUCTS
    assert not PRODUCTS & (OF_CUDNN | {"sum", "add", "embedding"})


SCRIPT = """import torch
SETTING
model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
x = torch.randn(1024, 1024, device="cuda")
with torch.no_grad():
    y = model(x)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", "f32"),
        ("torch.set_float32_matmul_precision('high')", "tf32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32"),
    ],
)
def test_a_script_is_recorded_with_its_settings(
    setting: str, expected: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("SETTING", setting))
    estimate = trace_script(script, "data=1", steps=0).estimate("h100-dgx")
    assert estimate.dtype == expected
    kinds = [share.kind for share in estimate.classes[0].shares]
    assert kinds == [KernelKind.GEMM.name.lower(), "host"]  # that launches eager PyTorch's kernels


#: Calls with tensors of bfloat16 and of float32 that `half` and `full` make.
CALLS: tuple[Callable[[Any, Any], object], ...] = (
    lambda half, full: half(4, 4).softmax(-1),
    lambda half, full: half(4, 4).sum(1) + half(4, 4).sum(1, dtype=torch.bfloat16),
    lambda half, full: half(4, 4).cumsum(1) ** 2,
    lambda half, full: F.normalize(half(4, 4)),
    lambda half, full: F.cross_entropy(half(4, 4), half(4).long()),
    lambda half, full: F.triplet_margin_loss(half(4, 4), half(4, 4), half(4, 4)),
    lambda half, full: torch.addcmul(half(4), half(4), full(4)) * torch.dot(half(4), full(4)),
    lambda half, full: F.interpolate(half(1, 2, 4, 4), scale_factor=2),
    lambda half, full: F.layer_norm(full(4, 4) @ half(4, 4), (4,), full(4)),
    lambda half, full: torch.rnn_tanh_cell(full(4, 4), full(4, 8), full(8, 4), full(8, 8)),
)
VIEWS = "aten.t. aten.transpose aten.expand aten.view aten._unsafe aten.empty prim."


class AllCalls(nn.Module):
    """All of them as `torch.autocast` runs them, which does nothing where no CUDA is found."""

    def forward(self) -> None:
        kinds = [
            partial(torch.empty, dtype=t, device="cuda") for t in (torch.bfloat16, torch.float32)
        ]
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            for call in CALLS:
                call(*kinds)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()


def run(module: type[nn.Module]) -> None:
    module()()


class Types(TorchDispatchMode):
    """Operators that ran, with the types of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.made.append((str(func), [dtype_name(t.dtype) for t in tensors]))
        return result


def test_autocast_is_that_of_pytorch_for_cuda() -> None:
    [recording] = record([Job.of_function(WorldStep(run, (AllCalls,), steps=0))])
    found = [(e.op, [t.dtype for t in e.outputs]) for e in recording.events]
    with FakeTensorMode(), torch.no_grad(), Types() as types:
        run(AllCalls)
    mine, other = (
        [op for op in ops if not op[0].startswith(tuple(VIEWS.split()))]
        for ops in (found, types.made)
    )
    assert mine == other and len(mine) > len(CALLS)


def test_every_operator_that_autocast_changes_on_cuda_is_in_a_list() -> None:
    names = torch._C._dispatch_get_all_op_names()
    cuda = {n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, "AutocastCUDA")}
    listed = " ".join(value for name, value in vars(autocast).items() if isinstance(value, str))
    own = {"cudnn_convolution", "cudnn_convolution_transpose", "_convolution.deprecated"}
    missing = {n.removeprefix("aten::") for n in cuda} - set(listed.split())
    assert missing == own | {"norm.Scalar"}  # which only C++ calls, and a form without a dimension


class Others(nn.Module):
    def forward(self) -> torch.Tensor:
        F.one_hot(torch.zeros(3, dtype=torch.int64, device="cuda"), 4)
        image = torch.zeros(2, 4, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        return F.conv2d(image, torch.zeros(8, 4, 3, 3, device="cuda"))


def test_operators_are_those_of_cuda_and_not_those_of_tensors_without_data() -> None:
    [recording] = record([Job.of_function(WorldStep(run, (Others,), steps=0))])
    encoded = [e.op for e in recording.events if e.outputs[0].shape == (3, 4)]
    assert encoded == ["aten.new_zeros.default", "aten.scatter_.value"]
    assert recording.events[-1].outputs[0].order == (0, 2, 3, 1)
