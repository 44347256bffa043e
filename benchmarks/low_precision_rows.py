"""Measured products of 8 and 4 bits, with the kernel that quantises their left operand in each call.

aiconfigurator's rows take A in bf16: each call quantises it (with a scale for each row, for each 128
of k, or for each 16) and multiplies. Weights are random and quantised before. Of its files of one GPU
those of sglang are read; vLLM's ran on weights left uninitialised.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np

from benchmarks.kernel_rows import DATA, Measured, Row, gemm, measured, read
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.ir.dims import ProductDims

#: Name of the files -> what products multiply.
TYPES = {"fp8": "f8E4M3FN", "fp8_block": "f8E4M3FN:block", "nvfp4": "f4E2M1FN"}
#: Bytes of a number, and of the scale of how many of them.
_BYTES = {"fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "nvfp4": 0.5 + 1 / 16}


def quantised_products(gpu: str, how: str) -> Measured:
    """Products of one GPU: `how` is "fp8", "fp8_block" or "nvfp4"."""
    return measured(
        read(f"aiconfigurator/gemm_{how}_{gpu}_sglang*"),
        lambda row: gemm(row, TYPES[how], _BYTES[how]),
        "latency_ms",
    )


def sustained_products(preset: str) -> Measured:
    """Products of cuBLASLt that ran for minutes, of Azure's machine like a preset, in its one type."""
    with (DATA / "azure_nd" / "rows.csv").open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["preset"], r["op"]) == (preset, "gemm")]
    return measured([_azure(r) for r in rows], lambda r: gemm(r, r["dtype"]), "latency_ms")


def _azure(row: Row) -> Row:
    """A row with its time for its rate; cuBLASLt's matrices are column-major, so its m are columns."""
    n, m, k = (int(float(row[name])) for name in ("m_or_bytes", "n", "k"))
    latency_ms = 2 * m * n * k / float(row["value"]) * 1e-9
    return row | {"m": str(m), "n": str(n), "k": str(k), "latency_ms": str(latency_ms)}


def quantising(products: Measured, how: str) -> Kernels:
    """The kernel of each call that makes A (m x k) narrow."""
    kernels = products.kernels
    shape = ProductDims.of(kernels.dims)
    elements = shape.m * shape.k
    return replace(
        kernels,
        kind=np.full(len(kernels), KernelKind.ELEMENTWISE, np.uint8),
        dims=np.zeros_like(kernels.dims),
        read_bytes=2 * elements,
        written_bytes=(_BYTES[how] * elements).astype(np.int64),
        elements=elements,
        dtypes=tuple(name.partition(":")[0] for name in kernels.dtypes),
    )


def casts(gpu: str) -> Measured:
    """The static cast of PyTorch without compiling, as one row of its four kernels.

    x / scale (to f32), clamp, to fp8, and a copy of that.
    """
    return measured(read(f"aiconfigurator/quantize_fp8_{gpu}_sglang*"), _cast, "latency_ms")


def _cast(row: Row) -> dict[str, object]:
    m, k = int(row["m"]), int(row["k"])
    return {
        "kind": KernelKind.ELEMENTWISE, "dtype": "f32", "dims": (1, m, 1, k), "flops": m * k,
        "read": (2 + 4 + 4 + 1) * m * k, "written": (4 + 4 + 1 + 1) * m * k,
        "elements": m * k, "arrays": 3, "causal": False,
    }  # fmt: skip
