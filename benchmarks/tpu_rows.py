"""The measurements of TPU v6e in benchmarks/data/ as `Kernels`, split by `kernel_rows.half_of`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.kernel_rows import DATA, Measured, Row, measured, read
from flint.backends.cost.chips.families.systolic.attention import working_ns
from flint.backends.cost.chips.families.systolic.hardware import VECTOR_OPERATIONS, hardware_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Cluster
from flint.cluster.residuals import Part

#: Layers of Llama-3.1-8B that are one product: n and k.
GEMM_LAYERS = {
    "q_proj": (4096, 4096),
    "o_proj": (4096, 4096),
    "gate_proj": (14336, 4096),
    "up_proj": (14336, 4096),
    "down_proj": (4096, 14336),
    "lm_head": (128256, 4096),
}
#: Its width, heads of queries and of keys, and elements of a head.
HIDDEN, HEADS, KEY_HEADS, HEAD_SIZE = 4096, 32, 8, 128
#: The norm whose time grows with its tokens. The rows of the post-attention and final norms are
#: 0.56 and 1.03 us for 6 tokens and for 2,048: they hold a part of a fusion, and are left out.
NORM = "input_layernorm"
_ATTENTION = "llmservingsim/*_attention.csv.gz"
_LAYERS = "llmservingsim/*_layers.csv.gz"


def gemm_layer(name: str, *, in_vmem: bool = False) -> Measured:
    """Products of one layer; with `in_vmem` their weights were fetched before they start."""
    n, k = GEMM_LAYERS[name]

    def kernel(row: Row) -> dict[str, object]:
        m = int(row["input"])
        weights = 0 if in_vmem else k * n
        return _kernel(
            KernelKind.GEMM, (1, m, n, k), 2 * m * n * k, 2 * (m * k + weights), 2 * m * n, m * n
        )

    return _layer(name, kernel)


def rope() -> Measured:
    """Rotary embedding of queries and keys, which the products before it left in VMEM."""
    width = (HEADS + KEY_HEADS) * HEAD_SIZE

    def kernel(row: Row) -> dict[str, object]:
        elements = int(row["input"]) * width
        dims = (1, int(row["input"]), 1, width)
        return _kernel(KernelKind.ELEMENTWISE, dims, 3 * elements, 0, 0, elements)

    return _layer("rope", kernel)


def norm() -> Measured:
    """RMS norms of activations that the products before them left in VMEM."""

    def kernel(row: Row) -> dict[str, object]:
        tokens = int(row["input"])
        elements = tokens * HIDDEN
        return _kernel(KernelKind.NORM, (1, tokens, 1, HIDDEN), 4 * elements, 0, 0, elements)

    return _layer(NORM, kernel)


def embedding() -> Measured:
    """Look-ups of tokens."""

    def kernel(row: Row) -> dict[str, object]:
        tokens = int(row["input"])
        moved = 2 * tokens * HIDDEN
        dims = (1, tokens, 1, HIDDEN)
        return _kernel(KernelKind.GATHER, dims, 0, moved, moved, tokens * HIDDEN)

    return _layer("embedding", kernel)


def attention_rows(*, decode: bool) -> Measured:
    """The serving kernel: one new token per sequence, or a chunk after keys that are cached."""
    rows = [r for r in read(_ATTENTION) if (r["is_prefill"] == "False") == decode]
    for row in rows:
        row["ms"] = str(float(row["p50_ns"]) * 1e-6)
    return measured(rows, _decode if decode else _prefill, "ms")


def parts() -> Mapping[Part, list[Measured]]:
    """LLMServingSim's layers by part; o_proj's weights were fetched before."""
    layers = [gemm_layer(name, in_vmem=name == "o_proj") for name in GEMM_LAYERS]
    return {
        Part.PRODUCTS: layers,
        Part.DECODING: [attention_rows(decode=True)],
        Part.ATTENTION: [attention_rows(decode=False)],
        Part.ELEMENTWISE: [rope()],
        Part.NORMS: [norm()],
        Part.LOOK_UPS: [embedding()],
    }


def splash_schedules() -> list[Row]:
    """Cycles that the TPU compiler schedules for a pair of blocks of splash attention."""
    return _table("tpu_schedules/splash.csv")


def splash_cycles(row: Row) -> float:
    """The same by the model."""
    hardware = hardware_of(Cluster.load(row["chip"]).chip)
    scores, size = np.array([float(row["block"]) ** 2]), np.array([float(row["head_size"])])
    ns = working_ns(
        scores, size, hardware, "bf16", row["kernel"] == "backward", float(row["products"])
    )
    return float(ns[0]) * hardware.vector_cycles_per_ns


def product_schedules() -> list[Row]:
    """Windows of products with and without fused work, and bundles of each window."""
    return _table("tpu_schedules/products.csv")


def waiting_operations() -> list[float]:
    """For each product with fused work, operations of the vector unit for each fused flop.

    It is what the vector unit could do in the cycles that the product takes longer than without.
    """
    return [
        (fused - plain) * VECTOR_OPERATIONS / flops for plain, fused, flops in _fused_products()
    ]


def fused_product_errors(operations: float) -> list[float]:
    """How far the cycles of the products are from `operations` for each flop on top of without."""
    return [
        (plain + operations * flops / VECTOR_OPERATIONS) / fused - 1
        for plain, fused, flops in _fused_products()
    ]


def _fused_products() -> list[tuple[float, float, float]]:
    """Cycles without and with what is fused, and the flops of that."""
    table = product_schedules()
    cycles = [float(row["windows"]) * float(row["bundles"]) for row in table]
    plain = {_shape_of(r): c for r, c in zip(table, cycles, strict=True) if r["flops"] == "0"}
    return [
        (plain[_shape_of(row)], fused, float(row["flops"]))
        for row, fused in zip(table, cycles, strict=True)
        if row["flops"] != "0"
    ]


def _shape_of(row: Row) -> tuple[str, ...]:
    return (row["chip"], row["m"], row["n"], row["k"])


def published_attention() -> list[Row]:
    """axlearn's times of splash attention on TPU v5p, see its README."""
    return _table("axlearn/attention_v5p.csv")


def _table(path: str) -> list[Row]:
    with (DATA / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _decode(row: Row) -> dict[str, object]:
    return _attention(int(row["batch_size"]), 1, int(row["kv_cache_size"]), causal=False)


def _prefill(row: Row) -> dict[str, object]:
    queries = int(row["prefill_chunk_size"])
    return _attention(1, queries, queries + int(row["kv_cache_size"]), causal=True)


def _attention(batch: int, queries: int, keys: int, *, causal: bool) -> dict[str, object]:
    result = batch * HEADS * queries * HEAD_SIZE
    pairs = queries * keys - (queries * (queries - 1) // 2 if causal else 0)
    read_bytes = 2 * (result + 2 * batch * KEY_HEADS * keys * HEAD_SIZE)
    dims = (batch * HEADS, queries, keys, HEAD_SIZE)
    flops = 4 * batch * HEADS * pairs * HEAD_SIZE
    kernel = _kernel(KernelKind.ATTENTION, dims, flops, read_bytes, 2 * result, result)
    return kernel | {"arrays": 4, "causal": causal}


def _kernel(
    kind: KernelKind,
    dims: tuple[int, int, int, int],
    flops: int,
    read_bytes: int,
    written_bytes: int,
    elements: int,
) -> dict[str, object]:
    return {
        "kind": kind, "dtype": "bf16", "dims": dims, "flops": flops, "read": read_bytes,
        "written": written_bytes, "elements": elements, "arrays": 3, "causal": False,
    }  # fmt: skip


def _layer(name: str, kernel: Callable[[Row], dict[str, object]]) -> Measured:
    rows = [r for r in read(_LAYERS) if r["layer_name"] == name]
    for row in rows:
        row["ms"] = str(float(row["latency(ns)"]) * 1e-6)
    return measured(rows, kernel, "ms")
