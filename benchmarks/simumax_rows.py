"""Products and attention in benchmarks/data/simumax as Megatron-core launches them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

from benchmarks.kernel_rows import DATA, Measured, Row, gemm, measured
from flint.backends.cost.chips.kernels import KernelKind
from flint.tools.measure.fitting.fit import halves, hash_of

#: Preset -> the machine's name in the file.
SYSTEMS = {"b200-dgx": "b200_bf16_ceperm", "a100-80-pcie": "a100_pcie_bf16"}
#: Bytes of an element of a result.
_BYTES = {"bf16": 2, "fp32": 4}
_SHAPE = ("batch", "seq_len", "head_num", "qk_head_dim", "v_head_dim")


def products(preset: str) -> Measured:
    """Products of one machine: forward, input gradients, and weight gradients that are added up."""
    rows = [_with_time(r, _product_flops) for r in _read(preset, "matmul")]
    return measured(rows, _product, "milliseconds")


def attention(preset: str, *, backward: bool = False) -> Measured:
    """Causal attention of one machine, forward or backward, without a cache."""
    kind = KernelKind.ATTENTION_BACKWARD if backward else KernelKind.ATTENTION
    operator, products = ("sdp_bwd", 5) if backward else ("sdp_fwd", 2)
    rows = [
        _with_time(r, lambda parts: products * _attention_flops(parts))
        for r in _read(preset, operator)
    ]
    found = measured(rows, lambda row: _attention(row, kind, products), "milliseconds")
    return replace(found, half=halves([hash_of(*(row[name] for name in _SHAPE)) for row in rows]))


def _read(preset: str, operator: str) -> list[Row]:
    with (DATA / "simumax" / "kernels.csv").open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["op"] == operator]
    return [r for r in rows if r["system"] == SYSTEMS[preset]]


def _with_time(row: Row, flops: Callable[[Row], int]) -> Row:
    """A row with the parts of its shape as columns, and its time from the share of the peak."""
    parts = dict(part.split("=") for part in row["shape"].split(", "))
    tflops = float(row["peak_tflops"]) * float(row["efficiency"])
    return parts | {"milliseconds": str(flops(parts) / tflops * 1e-9)}


def _product_flops(parts: Row) -> int:
    b, m, n, k = (int(parts[name]) for name in "bmnk")
    return 2 * b * m * n * k


def _attention_flops(parts: Row) -> int:
    """Of one product with keys and one with values, halved: the mask is not counted (SimuMax's
    simu_tools/efficency_test/test_fa_efficiency.py)."""
    batch, length, heads, size, value = (int(parts[name]) for name in _SHAPE)
    return batch * heads * length**2 * (size + value)


def _attention(row: Row, kind: KernelKind, products: int) -> dict[str, object]:
    """Forward reads q, k, v and writes the result; backward reads both and a gradient, writes three."""
    batch, length, heads, size, value = (int(row[name]) for name in _SHAPE)
    result = batch * length * heads * value
    queries = batch * length * heads * size
    pairs = batch * length * int(row["kv_head_num"]) * (size + value)
    backward = kind == KernelKind.ATTENTION_BACKWARD
    return {
        "kind": kind, "dtype": "bf16", "dims": (batch * heads, length, length, size),
        "flops": products * _attention_flops(row) // 2,
        "read": 2 * (queries + pairs + (2 * result if backward else 0)),
        "written": 2 * (queries + pairs if backward else result),
        "elements": result, "arrays": 4, "causal": True,
    }  # fmt: skip


def _product(row: Row) -> dict[str, object]:
    """What is accumulated is read too: `accumulate` adds to the gradient in place."""
    found = gemm(row, "bf16", c_byte=_BYTES[row["out_dtype"]])
    added = found["written"] if row["accumulate"] == "True" else 0
    return found | {"read": found["read"] + added}
