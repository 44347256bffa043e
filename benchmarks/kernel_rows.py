"""The kernel measurements in benchmarks/data/ as `Kernels`, split by a fixed rule."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.constants import Constants
from flint.backends.cost.chips.families.gpu.hardware import (
    L2_BANDWIDTH_RATIO,
    GpuHardware,
    element_bytes,
)
from flint.backends.cost.chips.kernel_table import Masks, band_keys, masked_flops
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.cluster.models import Chip, Cluster

DATA = Path(__file__).resolve().parent / "data"
#: Preset -> the GPU's name in aiconfigurator's files.
PRESETS = {
    "a100-80-dgx": "a100_sxm",
    "h100-dgx": "h100_sxm",
    "h200-dgx": "h200_sxm",
    "b200-dgx": "b200_sxm",
    "l40s": "l40s",
}
#: Those whose attention was measured in serving.
SERVING = PRESETS | {"rtx-pro-6000": "rtx_pro_6000"}
#: Those whose products were measured.
PRODUCTS = PRESETS | {
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
#: NeuSight's GPUs: memory bandwidth (B/s), SMs, boost clock (Hz), L2 (bytes); NVIDIA datasheets.
NEUSIGHT_GPUS = {
    "Tesla P100-PCIE-16GB": (732e9, 56, 1.303e9, 4e6),
    "Tesla V100-PCIE-32GB": (900e9, 80, 1.38e9, 6e6),
    "Tesla P4": (192e9, 20, 1.114e9, 2e6),
    "Tesla T4": (320e9, 40, 1.59e9, 4e6),
    "NVIDIA A100-PCIE-40GB": (1555e9, 108, 1.41e9, 40e6),
}
BINARY = ("add", "mul", "div", "pow")
Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class Measured:
    """Kernels, how long they ran, and which half each is in (1: held out of the fit)."""

    kernels: Kernels
    measured_ns: NDArray[np.float64]
    half: NDArray[np.int64]

    def select(self, rows: NDArray[np.bool_]) -> Measured:
        """Some of the rows."""
        return Measured(self.kernels.select(rows), self.measured_ns[rows], self.half[rows])

    def __len__(self) -> int:
        return len(self.measured_ns)


def read(pattern: str) -> list[Row]:
    """Rows of the one file under benchmarks/data that matches."""
    (path,) = DATA.glob(pattern)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def half_of(*shape: int) -> int:
    """0: fitted on, 1: held out, by the CRC-32 of the shape: the same on every GPU."""
    return zlib.crc32(",".join(map(str, shape)).encode()) % 2


def gemms(gpu: str) -> Measured:
    """Products of bf16 matrices of one GPU of aiconfigurator, on random weights."""
    return measured(
        read(f"aiconfigurator/gemm_bf16_{gpu}_sglang-*"),
        lambda row: gemm(row, "bf16"),
        "latency_ms",
    )


def f32_products(name: str, device: str) -> Measured:
    """NeuSight's products on CUDA cores of the GPU whose name has `device`: "bmm" or "linear"."""
    rows = [r for r in read(f"neusight/train_{name}_fp32*") if device in r["gpu"]]
    return measured(rows, _f32_product, "latency_ms")


def prefill(gpu: str) -> Measured:
    """Causal attention, of some rows behind a window."""
    return measured(read(f"aiconfigurator/context_attention_bf16_{gpu}_*"), _prefill, "latency")


def decode(gpu: str) -> Measured:
    """Attention of one new token, of some rows behind a window."""
    return measured(read(f"aiconfigurator/generation_attention_bf16_{gpu}_*"), _decode, "latency")


def encoder(gpu: str) -> Measured:
    """Attention without a mask, without a cache."""
    return measured(read(f"aiconfigurator/encoder_attention_bf16_{gpu}_*"), _encoder, "latency_ms")


def row_kernels(name: str, device: str) -> Measured:
    """NeuSight's f32 kernels of one GPU: `name` is "elem", "softmax" or "ln"."""
    kind = {"elem": KernelKind.ELEMENTWISE, "softmax": KernelKind.SOFTMAX, "ln": KernelKind.NORM}
    rows = [r for r in read(f"neusight/train_{name}_fp32*") if r["Device"] == device]
    return measured(rows, lambda row: _rows(row, kind[name]), "latency_ms")


@cache
def _any_chip() -> Chip:
    return Cluster.load("a100-40-dgx").chip


def neusight_hardware(device: str, constants: dict[str, float]) -> GpuHardware:
    """One of NeuSight's GPUs with constants to price element-wise and row kernels with."""
    bandwidth, sms, clock, l2 = NEUSIGHT_GPUS[device]
    return GpuHardware(
        chip=_any_chip(),  # only asked for peaks, which no such kernel needs
        constants=Constants(constants),
        sms=sms,
        cycles_per_ns=clock * 1e-9,
        l2_bytes=l2,
        l2_bytes_per_ns=L2_BANDWIDTH_RATIO * bandwidth * 1e-9,
        memory_bytes_per_ns=bandwidth * 1e-9,
    )


def measured(rows: list[Row], kernel: Callable[[Row], dict[str, Any]], column: str) -> Measured:
    """Kernels of the rows; `column` holds milliseconds."""
    made = [kernel(row) for row in rows]
    dtypes = tuple(sorted({str(k["dtype"]) for k in made}))

    def of(name: str, dtype: type) -> NDArray[np.generic]:
        return np.array([k[name] for k in made], dtype)

    kernels = Kernels(
        kind=of("kind", np.uint8),
        dtype=np.array([dtypes.index(str(k["dtype"])) for k in made], np.uint8),
        dims=of("dims", np.int64).reshape(-1, 4),
        flops=of("flops", np.int64),
        read_bytes=of("read", np.int64),
        written_bytes=of("written", np.int64),
        elements=of("elements", np.int64),
        arrays=of("arrays", np.int64),
        causal=of("causal", np.bool_),
        dtypes=dtypes,
        all_keys=np.array([k.get("all_keys", 0) for k in made], np.int64),
    )
    half = np.array([half_of(*k.get("shape", k["dims"])) for k in made])
    return Measured(kernels, np.array([float(r[column]) * 1e6 for r in rows]), half)


def gemm(row: Row, dtype: str, a_byte: float = 0.0, c_byte: int = 2) -> dict[str, Any]:
    """A product, and bytes of an element of operands (those of the type) and of the result."""
    batch, m, n, k = (int(row.get(name, 1)) for name in "bmnk")
    read = int((a_byte or element_bytes(dtype)) * batch * (m + n) * k)
    return {
        "kind": KernelKind.GEMM, "dtype": dtype, "dims": (batch, m, n, k),
        "flops": 2 * batch * m * n * k, "read": read, "written": c_byte * batch * m * n,
        "elements": batch * m * n, "arrays": 3, "causal": False,
    }  # fmt: skip


def _f32_product(row: Row) -> dict[str, object]:
    """NeuSight multiplies M x N by N x K (its neusight/Dataset/collect.py)."""
    return gemm({"b": row["B"], "m": row["M"], "n": row["K"], "k": row["N"]}, "f32", c_byte=4)


def _prefill(row: Row) -> dict[str, object]:
    queries = int(row["isl"])
    return _attention(row, queries, queries + int(row["step"]), causal=True)


def _decode(row: Row) -> dict[str, object]:
    return _attention(row, 1, int(row["isl"]) + int(row["step"]), causal=False)


def _encoder(row: Row) -> dict[str, object]:
    length = int(row["isl"])
    return _attention(row, length, length, causal=False, cached=False)


def _attention(
    row: Row, queries: int, keys: int, *, causal: bool, cached: bool = True
) -> dict[str, object]:
    """The measured call gets keys and values beside the cache that it attends to, so its bytes
    have them read once more and written (aiconfigurator's collector/sglang/collect_attn.py)."""
    batch, heads, size = int(row["batch_size"]), int(row["num_heads"]), int(row["head_dim"])
    key_heads = int(row.get("num_key_value_heads", 0)) or heads
    result = batch * heads * queries * size
    new = 2 * batch * key_heads * queries * size * cached
    dims = np.array([(batch * heads, queries, keys, size)])
    window = int(row.get("window_size", 0))
    behind = 0 < window < keys
    seen, flops = keys, 4 * result * keys // (2 if causal else 1)
    if behind:
        mask = Masks(np.array([False]), np.array([window]))
        seen = int(band_keys(dims, mask)[0])
        flops = int(masked_flops(np.array([4 * result * keys]), dims, mask)[0])
    read = min(window + queries - 1, keys) if behind else keys
    return {
        "kind": KernelKind.ATTENTION, "dtype": "bf16",
        "dims": (batch * heads, queries, seen, size),
        "flops": flops,
        "read": 2 * (result + 2 * batch * key_heads * read * size + new),
        "written": 2 * (result + new),
        "elements": result, "arrays": 4, "causal": causal and not behind,
        "all_keys": keys if behind else 0, "shape": tuple(int(d) for d in dims[0]),
    }  # fmt: skip


def _rows(row: Row, kind: KernelKind) -> dict[str, object]:
    rows, columns = int(row["B"]), int(row["H"])
    reads = 2 if row["OPName"] in BINARY else 1
    return {
        "kind": kind, "dtype": "f32", "dims": (1, rows, 1, columns), "flops": rows * columns,
        "read": 4 * rows * columns * reads, "written": 4 * rows * columns,
        "elements": rows * columns, "arrays": reads + 1, "causal": False,
    }  # fmt: skip
