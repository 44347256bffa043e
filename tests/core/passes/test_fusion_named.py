"""Kernels that a program names with scopes: before and after."""

from __future__ import annotations

from typing import Any

from flint.ir.program import Phase, Program
from flint.passes.fusion.attention import FuseAttention
from flint.passes.fusion.chains import FuseChains
from flint.passes.fusion.roles import named_kernels
from flint.passes.profiles import profile
from tests.core.passes.test_fusion_chains import BYTES, Table, kernels, launched

BY_HAND = FuseChains(blocks="shared", epilogue="", siblings="", slices=True, named=True)


def gelu(b: Table, x: int, **scope: Any) -> int:
    """Two rows, in a scope."""
    return b.wide("multiply", x, b.wide("tanh", x, **scope), **scope)


def chain() -> Table:
    """A sum, a GELU that is one kernel, and a sine."""
    b = Table()
    x = b.wide("add", b.argument(), b.argument(), scope="layers/mlp")
    b.result(b.wide("sine", gelu(b, x, scope="layers/mlp/kernel.gelu"), scope="layers/mlp"))
    return b


def test_named_rows_are_one_kernel_and_others_stay_outside() -> None:
    assert launched(kernels(chain(), BY_HAND)) == ["add", "fusion", "sine"]


def test_named_kernels_are_nothing_to_xla() -> None:
    assert launched(kernels(chain())) == ["fusion"]


def test_named_rows_that_read_the_same_are_one_kernel() -> None:
    b = Table()
    x, scope = b.argument(), {"scope": "norm/kernel.norm_backward"}
    down = b.op("reduce", x, shape=(64,), result_bytes=256, dims=(1, 64, 1, 4), **scope)
    b.result(down, b.wide("sine", x, **scope))
    after = kernels(b, BY_HAND)
    assert launched(after) == ["fusion.reduction"]
    assert (after.row(1).operand_bytes, after.row(1).result_bytes) == (BYTES, BYTES + 256)


def test_named_kernels_compute_nothing_of_others_again() -> None:
    """XLA would compute the sine in both; a kernel that exists reads what it reads."""
    b = Table()
    x = b.wide("sine", b.argument(), scope="layers")
    b.result(b.total(x, scope="layers/kernel.sum"), b.op("sort", b.wide("tanh", x)))
    assert launched(kernels(b)) == ["fusion.reduction", "fusion", "sort"]
    after = kernels(b, BY_HAND)
    assert launched(after) == ["fusion", "reduce", "sort"]


def test_named_kernels_read_other_types_themselves() -> None:
    b = Table()
    x = b.wide("convert", b.argument(), flops=0, scope="layers")
    b.result(b.wide("sine", x, scope="layers/kernel.gelu"))
    assert launched(kernels(b, BY_HAND)) == ["sine"]


def test_named_forward_and_backward_are_two_kernels() -> None:
    b = Table()
    x = b.wide("sine", b.argument(), scope="kernel.gelu", phase=Phase.FORWARD)
    b.result(b.wide("cosine", x, scope="kernel.gelu", phase=Phase.BACKWARD), x)
    assert launched(kernels(b, BY_HAND)) == ["sine", "cosine"]


def test_named_kernels_of_a_scope_end_where_its_name_ends() -> None:
    b = Table()
    names = ("a/kernel.x", "a/kernel.x/inner", "b/kernel.x", "a")
    b.result(*(b.wide("sine", b.argument(), scope=name) for name in names))
    program = b.build()
    numbers = [int(named_kernels(program)[r]) for r in (1, 3, 5, 7)]
    assert numbers[0] == numbers[1] != numbers[2]
    assert numbers[2] > numbers[3] == 0
    assert not named_kernels(program, honoured=False).any()


def attention(softmax: str) -> Program:
    """Scores, softmax and the sum of values."""
    b = Table()
    square: dict[str, Any] = {"shape": (1, 64, 64), "result_bytes": 64 * 64 * 4}
    rows = {"shape": (1, 64), "result_bytes": 256, "dims": (1, 64, 1, 64)}
    q, k, v = (b.parameter(shape=(1, 64, 8), result_bytes=2048) for _ in range(3))
    scores = b.op("dot_general", q, k, **square, dims=(1, 64, 64, 8), flops=64 * 64 * 16)
    top = b.op("reduce", scores, **rows, scope=softmax)
    wide = b.op("broadcast_in_dim", top, **square, scope=softmax)
    e = b.op("exponential", b.op("subtract", scores, wide, **square, scope=softmax),
             **square, scope=softmax)  # fmt: skip
    total = b.op("broadcast_in_dim", b.op("reduce", e, **rows, scope=softmax), **square,
                 scope=softmax)  # fmt: skip
    weights = b.op("divide", e, total, **square, scope=softmax)
    out = {"shape": (1, 64, 8), "result_bytes": 2048, "dims": (1, 64, 8, 64)}
    b.result(b.op("dot_general", weights, v, **out, flops=64 * 64 * 16))
    return b.build()


def test_named_softmaxes_stay_out_of_flash_attention() -> None:
    by_hand = FuseAttention(named=True)
    assert "fusion.attention" in launched(by_hand.apply(attention("attention")))
    named = attention("attention/kernel.softmax")
    assert by_hand.apply(named) is named
    assert "fusion.attention" in launched(FuseAttention().apply(named))


def test_profiles_that_run_pytorch_honour_named_kernels() -> None:
    honoured = {
        name: [getattr(p, "named", False) for p in profile(name).kernels]
        for name in ("inductor", "megatron", "xla-gpu", "xla-gpu+flash", "xla-tpu")
    }
    assert honoured == {
        "inductor": [False, True, True],
        "megatron": [False, False, False, True],
        "xla-gpu": [False] * 14,
        "xla-gpu+flash": [False] * 15,
        "xla-tpu": [False] * 8,
    }
