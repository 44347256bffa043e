"""What masks leave of attention: windows and causal halves, their price, flops and notes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import flint
from flint.backends.cost.chips.kernel_table import band_keys, masked_flops, masks_of
from flint.backends.cost.estimate import Estimate
from flint.cluster.models import Cluster
from flint.ir.mesh import Mesh
from flint.ir.program import CAUSAL, Program
from flint.passes.mlir import attention_mask, attention_name
from tests.program_rows import ProgramBuilder

SHAPE = (2, 4096, 8, 128)
SQUARE = 2 * 2 * SHAPE[0] * SHAPE[2] * SHAPE[1] ** 2 * SHAPE[3]


@cache
def traced(implementation: str, window: int | None, causal: bool = True) -> flint.Trace:
    import jax
    import jax.numpy as jnp

    args = [jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)] * 3
    size = None if window is None else (window - 1, 0)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, local_window_size=size, implementation=implementation
        )

    return flint.trace(attend, "1", *args)


def attention_ns(found: Estimate) -> float:
    return sum(s.busy_ns for s in found.classes[0].shares if s.kind == "attention")


def program(opcode: str, queries: int, keys: int) -> Program:
    b = ProgramBuilder(Mesh(("data",), (1,)))
    b.add(opcode, flops=1000 * queries * keys, dims=(1, queries, keys, 64))
    return b.build()


@pytest.mark.parametrize(
    ("config", "mask"),
    [
        ({}, 0),
        ({"mask_type": "NO_MASK", "sliding_window_length": 0}, 0),
        ({"mask_type": "CAUSAL"}, CAUSAL),
        ({"mask_type": "PADDING_CAUSAL", "sliding_window_length": 0}, CAUSAL),
        ({"mask_type": "CAUSAL", "sliding_window_length": 512}, 512),
    ],
)
def test_a_call_says_its_mask(config: dict[str, object], mask: int) -> None:
    assert attention_mask("__cudnn$fmhaSoftmax", {"cudnn_fmha_backend_config": config}) == mask


@pytest.mark.parametrize("window", [0, 64])
def test_a_compiled_call_says_its_mask(window: int) -> None:
    from flint.passes.partition.xla_child import parse_text
    from tests.hlo_programs import hlo_to_program

    config = json.dumps(
        {
            "cudnn_fmha_backend_config": {
                "mask_type": "CAUSAL",
                "sliding_window_length": window,
                "bmm1_dot_dimension_numbers": {"lhs_batch_dimensions": ["0", "1"]},
            }
        }
    )
    names = ", ".join(f"x{i}" for i in range(3))
    lines = [f"x{i} = bf16[2,8,256,64] parameter({i})" for i in range(3)]
    call = f'custom-call({names}), custom_call_target="__cudnn$fmhaSoftmax", backend_config='
    lines.append(f"ROOT y = bf16[2,8,256,64] {call}{config}")
    text = "HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}\n"
    program = hlo_to_program(parse_text(text.encode()), Mesh(("data",), (1,)))
    mask = f"[window={window}]" if window else "[causal]"
    assert f"custom_call.__cudnn$fmhaSoftmax{mask}" in program.opcodes
    assert program.mask.max() == window or program.mask.min() == CAUSAL


@pytest.mark.parametrize("queries", [1, 7, 64, 100])
@pytest.mark.parametrize("keys", [1, 64, 100])
@pytest.mark.parametrize("window", [1, 2, 63, 99])
def test_windows_count_what_a_query_sees(queries: int, keys: int, window: int) -> None:
    """Against counting pairs one by one, where the last query sees the last key."""
    p = program(f"custom_call.flint.attention[window={window}]", queries, keys)
    masks = masks_of(p)
    at = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)[None, :]
    pairs = int(((key <= at) & (key > at - window)).sum())
    if window >= keys:
        assert masks.causal.all()
        assert not masks.window.any()
        return
    assert band_keys(p.dims, masks)[0] == -(-pairs // queries)
    behind = masked_flops(p.flops, p.dims, masks)[0] / p.flops[0]
    assert pairs / (queries * keys) <= behind + 1e-9 <= (pairs + queries) / (queries * keys) + 1e-6


@pytest.mark.parametrize("cluster", ["h100", "a100-80-dgx"])
def test_a_window_is_cheaper_than_all_keys_before_a_query(cluster: str) -> None:
    window, causal = (traced("cudnn", w).estimate(cluster) for w in (512, None))
    assert attention_ns(window) < 0.6 * attention_ns(causal)
    assert causal.model_flops == causal.executed_flops == SQUARE // 2
    assert window.model_flops == pytest.approx(SQUARE * 480 / 4096, rel=0.01)


def test_a_window_of_all_keys_is_causal() -> None:
    window, causal = (traced("cudnn", w).estimate("h100") for w in (4096, None))
    assert window.step_time_ns == causal.step_time_ns
    assert window.model_flops == causal.model_flops


@pytest.mark.parametrize(("window", "notes"), [(None, 0), (512, 1)])
def test_a_mask_that_may_be_a_window_is_said(window: int | None, notes: int) -> None:
    """Of attention that is written out a program does not hold the length."""
    trace = traced("xla", window)
    for profile in ("xla-gpu+flash", "inductor"):
        found = trace.estimate("h100", profile=profile)
        assert sum("a window?" in note for note in found.notes) == notes
        assert found.executed_flops == found.model_flops == SQUARE // 2
    plain = trace.estimate("h100", profile="xla-gpu")
    assert (plain.model_flops, plain.executed_flops) == (SQUARE // 2, SQUARE)


def test_no_flash_kernel_stores_scores() -> None:
    """Every profile that makes flash kernels needs the memory of them."""
    peaks = {
        profile: traced("xla", None).estimate("h100", profile=profile).classes[0].memory.peak_bytes
        for profile in ("xla-gpu", "xla-gpu+flash", "inductor")
    }
    assert peaks["inductor"] == peaks["xla-gpu+flash"]
    scores = 4 * SHAPE[0] * SHAPE[2] * SHAPE[1] ** 2
    assert peaks["inductor"] < scores < peaks["xla-gpu"]


@pytest.mark.parametrize(
    ("implementation", "profile", "said"),
    [
        ("cudnn", "xla-gpu", ""),
        ("xla", "xla-gpu+flash", ""),
        ("xla", "xla-gpu", ", masked scores included"),
    ],
)
def test_what_is_executed_beyond_the_model_is_named(
    implementation: str, profile: str, said: str
) -> None:
    text = traced(implementation, None).estimate("h100", profile=profile).to_text()
    (line,) = (line for line in text.splitlines() if line.startswith("HFU"))
    assert line.endswith("%" + said)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("eager", ["the host launches a kernel every"]),
        ("torch", ["host launches take no time: launches are never late"]),
        ("inductor", []),
    ],
)
def test_an_estimate_says_whose_host_is_late(profile: str, said: list[str]) -> None:
    """The eager stack has a measured host, compiled ones have none."""
    cluster = Cluster.load("h100")
    assert cluster.host_launch_ns is None
    found = traced("cudnn", None).estimate(cluster, profile=profile)
    notes = [note for note in found.notes if "host" in note and "launch" in note]
    assert len(notes) == len(said) and all(
        n.startswith(s) for n, s in zip(notes, said, strict=True)
    )


@pytest.mark.parametrize("causal", [True, False])
def test_an_exported_pytorch_program_says_its_mask(causal: bool) -> None:
    torch = pytest.importorskip("torch")

    class Attend(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    q = torch.empty(2, 8, 4096, 64, dtype=torch.bfloat16, device="meta")
    trace = flint.trace(Attend(), "1", q, q, q)
    (row,) = [r for r in map(trace.program.row, range(len(trace.program))) if r.flops]
    shown = "[causal]" if causal else ""
    assert (row.opcode, row.mask) == (f"custom_call.flint.attention{shown}", CAUSAL * causal)
    whole = 4 * 2 * 8 * 4096**2 * 64
    assert trace.estimate("h100").model_flops == (whole // 2 if causal else whole)


@pytest.mark.parametrize("name", ["flint.attention", "flint.attention_backward"])
def test_a_call_of_flints_own_says_its_mask(name: str) -> None:
    for causal in (False, True):
        target = f"{name}[causal]" if causal else name
        mask = attention_mask(target, {"causal": causal, "scale": 0.125})
        assert mask == CAUSAL * causal
        assert attention_name(target, mask) == f"custom_call.{target}"
