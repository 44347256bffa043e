"""Attention as one operator: its mathematics against torch, its kernels, shardings and work."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from torch.nn import functional as F

import flint
from flint.frontends.torch_ops.nn import attention
from flint.ir.program import Collective, Kind, Row
from tests.auto_mesh import auto_mesh
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    bools,
    cases,
    exactly,
    names_without_a_case,
    t,
)

NO_OPTIONS = (0.0, False, None, False)
CAUSAL = (0.0, True, 0.3, False)
GROUPED = (0.0, False, None, True)
Q, K = t(2, 4, 5, 8), t(2, 2, 5, 8)
UNSEEN = exactly([[False, False, False, False, False], *[[True] * 4 + [False]] * 4])


def torch_attention(q: Any, k: Any, v: Any, mask: Any, *options: Any) -> Any:
    """Output and log-sum-exp, from torch's own operator and from its definition."""
    p, causal, scale, gqa = options
    out = F.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale, enable_gqa=gqa)
    if gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = (q.float() @ k.float().transpose(-1, -2)) * (scale or q.shape[-1] ** -0.5)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    return out, scores.logsumexp(-1)


def torch_gradients(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, stat: Any, *rest: Any
) -> Any:
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in (q, k, v)]
    found = torch_attention(*inputs, mask, *rest)[0]
    return torch.autograd.grad(found, inputs, grad)


def torch_gradients_and_mask(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, stat: Any, *rest: Any
) -> Any:
    inputs = [x.detach().requires_grad_() for x in (q, k, v, mask)]
    return torch.autograd.grad(torch_attention(*inputs, *rest)[0], inputs, grad)


def gradient_case(op: str, q: Any, k: Any, v: Any, mask: Any, *options: Any) -> Case:
    """A case of a backward operator, with what forward computed for the same inputs."""
    case = Case(op, (q, k, v, mask), {})
    with torch.no_grad():
        out, statistic = torch_attention(*case.arguments[0], *options)
    inputs = [x if x is None else exactly(x.tolist(), _dtype(x)) for x in case.arguments[0]]
    grad = t(*out.shape)
    saved = (exactly(out.tolist(), "f32"), exactly(statistic.tolist(), "f32"))
    of_mask = op.endswith("mask")
    reference = torch_gradients_and_mask if of_mask else torch_gradients
    args = (grad, *inputs, *saved, *options)
    return Case(op, args, {}, tolerance=(1e-4, 1e-5), reference=reference)


def _dtype(tensor: Any) -> str:
    return "bool" if tensor.dtype == torch.bool else "f32"


FORWARD = "flint::attention"
BACKWARD = "flint::attention_backward"
OF_MASK = "flint::attention_backward_mask"
#: Queries, keys, values, mask and options that every operator meets.
INPUTS = [
    (Q, Q, Q, None, *NO_OPTIONS),
    (Q, Q, Q, None, *CAUSAL),
    (Q, K, t(2, 2, 5, 6), None, *GROUPED),
    (Q, t(2, 4, 7, 8), t(2, 4, 7, 8), None, *CAUSAL),
    (Q, Q, Q, bools(2, 1, 5, 5), *NO_OPTIONS),
    (Q, Q, Q, UNSEEN, *NO_OPTIONS),
    (Q, Q, Q, t(4, 1, 5), *NO_OPTIONS),
    (t(3, 5, 8), t(3, 5, 8), t(3, 5, 8), t(5, 5), *NO_OPTIONS),
    (t(2, 3, 4, 5, 8), t(2, 3, 2, 5, 8), t(2, 3, 2, 5, 8), t(3, 1, 5, 5), *GROUPED),
    (t(5, 8), t(6, 8), t(6, 8), None, *NO_OPTIONS),
]
CASES = [
    *(c for i in INPUTS for c in cases(FORWARD, *i, reference=torch_attention)),
    *cases(FORWARD, Q, K, K, None, *GROUPED, over="bf16", reference=torch_attention),
    *(gradient_case(BACKWARD, *i) for i in INPUTS),
    gradient_case(OF_MASK, Q, Q, Q, t(1, 4, 5, 5), *NO_OPTIONS),
    gradient_case(OF_MASK, Q, K, K, t(2, 1, 1, 5), *GROUPED),
    gradient_case(OF_MASK, t(3, 5, 8), t(3, 5, 8), t(3, 5, 8), t(5, 5), *NO_OPTIONS),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, attention) == []


def test_dropout_drops_the_same_forward_and_backward() -> None:
    """With dropout the output is linear in the values: <grad, out> = <dv, v>."""
    torch.manual_seed(0)
    options = (0.5, False, None, False)

    def run(q: Any, v: Any, grad: Any) -> Any:
        out, statistic = attention.attention(q, q, v, None, *options)
        whole, _ = attention.attention(q, q, v, None, *NO_OPTIONS)
        saved = (grad, q, q, v, None, out, statistic)
        _, _, dv = attention.attention_backward(*saved, *options)
        return abs(out - whole).max(), (grad * out).sum(), (dv * v).sum()

    arrays = [jnp.asarray(torch.randn(2, 4, 16, 16).numpy()) for _ in range(3)]
    changed, left, right = (float(x) for x in jax.jit(run)(*arrays))
    assert changed > 0.01
    assert left == pytest.approx(right, rel=1e-4)


# in PyTorch -----------------------------------------------------------------------------------


class Attention(torch.nn.Module):
    """Attention with a learned bias on the scores, as T5 has."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.bias = torch.nn.Parameter(torch.zeros(1, 4, 16, 16))

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        out = attention.scaled_dot_product_attention(q, k, v, self.bias)
        return out.transpose(1, 2).reshape(2, 16, 32).sum()


def test_the_joint_graph_keeps_one_operator_each_way() -> None:
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with torch.device("meta"):
        module, x = Attention(), torch.randn(2, 16, 32)
    exported = torch.export.export(module, (x,), strict=False)
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, exported.module(), (x,))
    names = [str(n.target) for n in joint.graph_module.graph.nodes]
    assert [n for n in names if n.startswith("flint.")] == [
        "flint.attention.default",
        "flint.attention_backward_mask.default",
    ]


def test_memory_order_is_that_of_the_queries() -> None:
    q = torch.empty(2, 5, 4, 8, device="meta").transpose(1, 2)
    assert attention.scaled_dot_product_attention(q, q, q).transpose(1, 2).is_contiguous()


# on a mesh ------------------------------------------------------------------------------------

MESH = auto_mesh((2, 4), ("data", "model"))
SHAPES = ((4, 16, 128, 64), (4, 8, 256, 64), (4, 8, 256, 32))


def rows(function: Any, mask: tuple[int, ...] | None, spec: P, mask_spec: P) -> list[Row]:
    def shaped(shape: tuple[int, ...], where: P) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, where))

    q, k, v = (shaped(s, spec) for s in SHAPES)
    masks = [] if mask is None else [shaped(mask, mask_spec)]
    program = flint.trace(function, MESH, q, k, v, *masks).program
    program.verify()
    return [program.row(i) for i in range(len(program))]


def step(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Forward and backward."""
    options = (0.0, mask is None, None, True)
    out, statistic = attention.attention(q, k, v, mask, *options)
    backward = attention.attention_backward if mask is None else attention.attention_backward_mask
    return backward(out, q, k, v, mask, out, statistic, *options)


def test_batch_and_heads_shard_without_communication() -> None:
    found = rows(step, None, P("data", "model"), P())
    forward, backward = (r for r in found if "attention" in r.opcode)
    assert forward.opcode == "custom_call.flint.attention[causal]"
    assert backward.opcode == "custom_call.flint.attention_backward[causal]"
    # local: 2 sequences, 4 of 16 query heads, 128 queries, 256 keys, sizes 64 and 32
    assert forward.flops == 2 * (2 * 4 * 128) * 256 * (64 + 32)
    assert backward.flops == 2 * (2 * 4 * 128) * 256 * (3 * 64 + 2 * 32)
    assert [r for r in found if r.kind is Kind.COLLECTIVE] == []


def test_a_shared_bias_is_summed_over_the_batch() -> None:
    found = rows(step, (1, 16, 128, 256), P("data", "model"), P(None, "model"))
    assert "custom_call.flint.attention" in {r.opcode for r in found}
    (reduced,) = (r for r in found if r.kind is Kind.COLLECTIVE)
    assert reduced.collective is Collective.ALL_REDUCE
    assert str(reduced.group) == "data"
    assert reduced.comm_bytes == 4 * 128 * 256 * 4


def test_a_sharded_sequence_is_brought_together() -> None:
    found = rows(step, None, P("data", None, "model"), P())
    kinds = {r.collective for r in found if r.kind is Kind.COLLECTIVE}
    assert kinds and kinds <= {Collective.ALL_GATHER, Collective.ALL_TO_ALL}


def test_every_device_computes_all_of_the_calls() -> None:
    """XLA knows no rule for the calls: every device computes all of them."""
    arrays = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in SHAPES]
    program = flint.trace(step, MESH, *arrays).program
    flops = [r.flops for r in map(program.row, range(len(program))) if r.flops]
    rows = 2 * (4 * 16 * 128) * 256
    assert flops == [rows * (64 + 32), rows * (3 * 64 + 2 * 32)]
