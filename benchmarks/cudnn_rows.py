"""Attention of libraries: cuDNN's in training (data/cudnn_attention), and of two on MI355X (data/hipkittens)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.kernel_rows import Measured, Row, measured, read
from flint.backends.cost.chips.families.gpu.hardware import element_bytes
from flint.backends.cost.chips.kernel_table import Masks, band_keys, masked_flops
from flint.backends.cost.chips.kernels import KernelKind
from flint.tools.measure.fitting.fit import halves, hash_of

#: Preset -> the GPU's name in the file.
GPUS = {"h200-dgx": "h200", "gb200-nvl72": "gb200", "gb300-nvl72": "gb300"}
#: Type of kernels -> its name in the file.
TYPES = {"bf16": "bfloat16", "f8E4M3FN": "fp8", "f8E4M3FN:block": "mxfp8"}
_SHAPE = ("mask", "batch", "q_len", "q_heads", "kv_heads", "d_qk", "d_vo", "window")


def attention(
    preset: str, dtype: str = "bf16", *, backward: bool = False, deterministic: bool = False
) -> Measured:
    """Rows of one chip, type and pass. `deterministic`: those of the backward pass alone that are so."""
    asked = (TYPES[dtype], "bwd" if backward else "fwd")
    of_gpu = [r for r in read("cudnn_attention/*.gz") if r["gpu"] == GPUS[preset]]
    half = halves([hash_of(*(row[name] for name in _SHAPE)) for row in of_gpu])
    chosen = [
        at
        for at, r in enumerate(of_gpu)
        if (r["dtype"], r["pass"]) == asked
        and (not backward or (r["deterministic"] == "True") == deterministic)
    ]
    rows = [of_gpu[at] for at in chosen]
    found = measured(rows, lambda row: _attention(row, dtype, backward), "time_ms")
    return replace(found, half=half[chosen])


def _attention(row: Row, dtype: str, backward: bool) -> dict[str, object]:
    """Forward reads q, k, v and writes the result; backward reads a gradient, too, and writes three.

    Results and gradients of 8 bits have 16.
    """
    heads, keys, window = (int(row[n]) for n in ("q_heads", "kv_len", "window"))
    batch, length, size, value = (int(row[n]) for n in ("batch", "q_len", "d_qk", "d_vo"))
    result, queries = (batch * length * heads * width for width in (value, size))
    pairs = batch * keys * int(row["kv_heads"]) * (size + value)
    causal, behind = row["mask"] != "no_mask", 0 < window < keys
    dims = np.array([(batch * heads, length, keys, size)])
    mask = Masks(np.array([causal and not behind]), np.array([window if behind else 0]))
    products = 3 * size + 2 * value if backward else size + value
    flops = masked_flops(np.array([2 * batch * heads * length * keys * products]), dims, mask)
    read_bytes = element_bytes(dtype) * (queries + pairs) + 2 * backward * 2 * result
    return {
        "kind": KernelKind.ATTENTION_BACKWARD if backward else KernelKind.ATTENTION,
        "dtype": dtype, "dims": (batch * heads, length, int(band_keys(dims, mask)[0]), size),
        "flops": int(flops[0]), "read": read_bytes,
        "written": 2 * (queries + pairs if backward else result), "elements": result, "arrays": 4,
        "causal": causal and not behind, "all_keys": keys if behind else 0,
    }  # fmt: skip


def on_mi355x(library: str) -> Measured:
    """Forward attention of Composable Kernel ("ck") or Triton on MI355X, in bf16."""
    rows = [r for r in read("hipkittens/*.gz") if r["library"] == library]
    for row in rows:
        batch, length = int(row["batch"]), int(row["length"])
        row |= {"q_len": row["length"], "kv_len": row["length"], "d_qk": row["d"], "d_vo": row["d"]}
        row |= {"window": "0", "mask": "causal" if row["causal"] == "True" else "no_mask"}
        flops = (2 if row["causal"] == "True" else 4) * length**2 * int(row["d"])
        row["ms"] = str(batch * int(row["q_heads"]) * flops / float(row["tflops"]) / 1e9)
    return measured(rows, lambda row: _attention(row, "bf16", False), "ms")
