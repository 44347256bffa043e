"""What torch.nn, torch.optim and torch.func reach on CUDA is recorded, or refused by name.

The CPU with values says which shapes come out, and PyTorch's own counter which products.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_private import meta_kernels
from flint.frontends.torch_world.program.cuda_kernels import shape_kernels
from tests import torch_reach
from tests.torch_reach import ABSTRACT, Outcome

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
STEPS = torch_reach.all_steps()
#: What cannot be recorded, and the code of the refusal.
REFUSED = {
    "nn.DataParallel": "FL235",
    "nn.Embedding sparse": "FL257",
    "optim.SparseAdam": "FL257",
    "F.to_sparse": "FL257",
    "F.quantize_per_channel": "FL255",
    "F.an operator without shapes": "FL255",
    "F.an operator without shapes, backward": "FL255",
    "F.an operator as large as its data": "FL256",
    "F.nonzero": "FL233",
}
#: How many rows go where is drawn on the CPU; recorded ones are balanced.
DRAWN = {"nn.AdaptiveLogSoftmaxWithLoss"}
#: Optimizers whose steps are on the device cannot run on the CPU.
ON_DEVICE = {name for name in STEPS if name.endswith(" capturable")}
#: Products that PyTorch's counter does not know, by hand, in FLOPs.
BY_HAND: dict[str, int] = {
    # 5 rows of 8, 4 x 8 x 6 weights, 5 rows of 6; as much for each of three gradients
    "nn.Bilinear": 4 * 2 * 5 * 4 * 8 * 6,
    # 15 rows of 16: three projections and one, scores and values over 5 or 3 rows, 32 in between
    "nn.TransformerEncoderLayer in inference": 2 * 15 * 16 * (64 + 2 * 5 + 2 * 32),
    "nn.MultiheadAttention in inference": 2 * 15 * 16 * (64 + 2 * 3),
    # 11 rows of three sequences, and cuDNN's gradient of the first states
    "nn.packed LSTM": 3 * 2 * 11 * 4 * 16 * (8 + 16),
    "nn.packed GRU": 3 * 2 * 11 * 3 * 16 * (8 + 16),
    # 10 rows of 8, 8 x 16 weights, and their gradient
    "F.jagged": 2 * 2 * 10 * 8 * 16,
    # of 8 heads: two products forward, five backward, or four where scores are kept
    **dict.fromkeys(
        ("F.attention", *(f"F.attention {by}" for by in ("of float32", "by cuDNN", "of groups"))),
        7 * 2 * 8 * 8 * 8 * 16,
    ),
    "F.attention of groups, masked": 6 * 2 * 8 * 8 * 8 * 16,
    # a product, its derivative, and both again where they were traced
    "func.linearize": 4 * 2 * 4 * 4 * 4,
}


#: The scores, which attention in one kernel calculates again for the gradient: 2 x 3 sequences x
#: queries x keys x 16.
AGAIN = {
    "nn.TransformerEncoderLayer": 96 * 5 * 5,
    "nn.TransformerEncoder": 2 * 96 * 5 * 5,
    "nn.TransformerDecoderLayer": 96 * (5 * 5 + 5 * 6),
    "nn.TransformerDecoder": 2 * 96 * (5 * 5 + 5 * 6),
    "nn.Transformer": 96 * (5 * 5 + 6 * 6 + 6 * 5),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    file = tmp_path_factory.mktemp("reach") / "outcomes"
    command = [sys.executable, "-m", "tests.torch_reach", str(file)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Outcome] = pickle.loads(file.read_bytes())
    return found


@pytest.fixture(scope="module")
def with_values() -> dict[str, Outcome]:
    return torch_reach.on_cpu({n: s for n, s in STEPS.items() if n not in {*REFUSED, *ON_DEVICE}})


def _classes(module: Any, base: type) -> set[str]:
    found = {n: v for n, v in vars(module).items() if inspect.isclass(v)}
    return {n for n, v in found.items() if issubclass(v, base)}


def test_every_name_has_a_step() -> None:
    modules = _classes(torch.nn, torch.nn.Module) - set(ABSTRACT)
    optimizers = _classes(torch.optim, torch.optim.Optimizer) - {"Optimizer"}
    transforms = set(torch.func.__all__) - {"debug_unwrap"}
    for group, names in (("nn", modules), ("optim", optimizers), ("func", transforms)):
        assert not [n for n in names if f"{group}.{n}" not in STEPS], group


def test_each_is_recorded_or_refused_by_name(recorded: dict[str, Outcome]) -> None:
    refused = {name: o.code or o.error for name, o in recorded.items() if o.error}
    assert refused == REFUSED
    for name, outcome in recorded.items():
        for word in ("flint", "0x", "backend", "PrivateUse1"):
            assert word not in outcome.error, name


def test_shapes_and_types_are_those_of_the_cpu(
    recorded: dict[str, Outcome], with_values: dict[str, Outcome]
) -> None:
    differ = {
        name: (recorded[name].results, expected.results)
        for name, expected in with_values.items()
        if recorded[name].results != expected.results and name not in DRAWN
    }
    assert not differ
    assert len(with_values) > 250


def test_products_are_those_that_pytorch_counts(
    recorded: dict[str, Outcome], with_values: dict[str, Outcome]
) -> None:
    expected = {
        n: BY_HAND.get(n, o.product_flops) + AGAIN.get(n, 0) for n, o in with_values.items()
    }
    differ = {
        name: (recorded[name].product_flops, flops)
        for name, flops in expected.items()
        if recorded[name].product_flops != flops and name not in DRAWN
    }
    assert not differ
    assert sum(flops > 0 for flops in expected.values()) > 60


def test_all_work_is_known(recorded: dict[str, Outcome]) -> None:
    assert {n: o.unpriced for n, o in recorded.items() if o.unpriced} == {}


@pytest.mark.parametrize(
    "name, operator",
    {
        "nn.LSTM": "aten._cudnn_rnn.default",
        "nn.packed GRU": "aten._cudnn_rnn.default",
        "nn.RNN in bfloat16": "aten.tanh.default",
        "nn.GRU in bfloat16": "aten._thnn_fused_gru_cell.default",
        "nn.SyncBatchNorm": "aten.batch_norm_stats.default",
        "optim.SGD fused": "aten._fused_sgd_.default",
        "nn.CTCLoss": "aten._ctc_loss_backward.default",
        "F.attention": "aten._scaled_dot_product_flash_attention_backward.default",
        "F.attention of float32": "aten._scaled_dot_product_efficient_attention.default",
        "F.attention by products": "aten._softmax_backward_data.default",
        "F.attention by cuDNN": "aten._scaled_dot_product_cudnn_attention_backward.default",
        "F.attention of groups": "aten._scaled_dot_product_flash_attention.default",
        "F.attention of groups, masked": "aten.bmm.default",
    }.items(),
)
def test_cuda_has_its_own_way(recorded: dict[str, Outcome], name: str, operator: str) -> None:
    assert operator in recorded[name].operators


#: CUDA kernels that nothing tells the shapes of, and that modules, optimizers and transforms do not
#: reach: other libraries' names of convolutions, sparse, quantised and nested tensors, halves of others.
WITHOUT_SHAPES = re.compile(
    r"_?(use_)?(cudnn|miopen)_.*|.*sparse.*|_cslt_.*|.*quantize.*|_make_per_.*|_?nested_.*"
    r"|_?(slow_)?conv(_transpose|_depthwise|_dilated)?[23]d.*|_mixed_dtypes_linear"
    r"|_triton_.*|_cum(max|min)_helper|_logcumsumexp|_aminmax(\.dim)?|_compute_linear_combination"
    r"|record_stream|is_set_to|.*\.(grad_input|out|a|output|output_mask|Tensor|.*_out)"
    r"|_scaled_grouped_mm_v2"
)


def _declared_for_cuda() -> list[str]:
    yaml = pytest.importorskip("yaml")
    file = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    found = []
    for function in yaml.safe_load(file.read_text()):
        keys = {k.strip() for names in function.get("dispatch") or {} for k in names.split(",")}
        if "CUDA" in keys or function.get("structured_delegate"):
            found.append(function["func"].partition("(")[0])
    return found


def _has_shapes(name: str) -> bool:
    """Whether PyTorch has: a meta kernel, a kernel made of others, or a rule of fake tensors."""
    from torch._subclasses.fake_impls import op_implementations_checks as rules

    kinds = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    keys = (*kinds, "CompositeExplicitAutogradNonFunctional")
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key) for key in keys):
        return True
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return any(check(operator) for check, _ in rules)


def test_every_kernel_of_cuda_has_shapes_somewhere() -> None:
    meta_kernels()
    declared = _declared_for_cuda()
    assert len(declared) > 1000
    missing = {name for name in declared if not _has_shapes(name)} - set(shape_kernels())
    assert sorted(name for name in missing if not WITHOUT_SHAPES.fullmatch(name)) == []
