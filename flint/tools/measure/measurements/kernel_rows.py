"""Kernels from their sizes: bytes and flops that follow from dimensions and a type."""

from __future__ import annotations

from flint.ir.op_class import OpClass
from flint.tools.measure.measurements.rows import KernelTime

#: StableHLO's names of types, by those that tables have (in lower case).
DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16",
    "half": "f16", "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32", "tf32": "tf32",
    "f64": "f64", "fp64": "f64", "float64": "f64", "double": "f64", "i8": "i8", "int8": "i8",
    "fp8": "f8E4M3FN", "fp8_e4m3": "f8E4M3FN", "float8_e4m3fn": "f8E4M3FN", "e4m3": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "fp8_e5m2": "f8E5M2", "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ", "f8e4m3fn": "f8E4M3FN", "f8e5m2": "f8E5M2",
    "f8e4m3fnuz": "f8E4M3FNUZ", "f8e5m2fnuz": "f8E5M2FNUZ",
}  # fmt: skip
_BYTES = {"f64": 8, "f32": 4, "tf32": 4, "bf16": 2, "f16": 2}


def bytes_of(dtype: str) -> int:
    """Bytes of an element of a type of `DTYPES`."""
    return _BYTES.get(dtype, 1)


def product(m: int, n: int, k: int, dtype: str, measured_ns: float, batch: int = 1) -> KernelTime:
    """(m, k) times (k, n), `batch` times; results of products of 8-bit types have 2 bytes."""
    size = bytes_of(dtype)
    return KernelTime(
        OpClass.MATMUL,
        (batch, m, n, k),
        dtype,
        measured_ns,
        flops=2 * batch * m * n * k,
        read_bytes=batch * size * (m * k + k * n),
        written_bytes=batch * max(size, 2) * m * n,
        elements=batch * m * n,
        arrays=3,
    )


def attention(
    sequences: int,
    heads: int,
    key_heads: int,
    queries: int,
    keys: int,
    head_size: int,
    dtype: str,
    measured_ns: float,
    *,
    causal: bool,
    backward: bool = False,
    writes_cache: bool = False,
) -> KernelTime:
    """Fused attention of `sequences`; `key_heads` of 0 are as many as heads.

    With `writes_cache` the new keys and values are read and written to a cache beside it. Of causal
    attention the half of the flops is counted, as in a program.
    """
    size, key_heads = bytes_of(dtype), key_heads or heads
    result = sequences * heads * queries * head_size
    cached = 2 * sequences * key_heads * queries * head_size if writes_cache else 0
    kept = 2 * sequences * key_heads * keys * head_size
    flops = 4 * result * keys // (2 if causal else 1)
    passes = 2 if backward else 1
    return KernelTime(
        OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION,
        (sequences * heads, queries, keys, head_size),
        dtype,
        measured_ns,
        flops=flops * 5 // 2 if backward else flops,
        read_bytes=size * (result * passes + kept + cached),
        written_bytes=size * ((result + kept) if backward else (result + cached)),
        elements=result,
        arrays=4,
        causal=causal,
    )


def by_rows(op: OpClass, rows: int, columns: int, dtype: str, measured_ns: float) -> KernelTime:
    """A softmax, norm or reduction over rows."""
    size, elements = bytes_of(dtype), rows * columns
    result = rows if op is OpClass.REDUCE else elements
    return KernelTime(
        op,
        (1, rows, 1, columns),
        dtype,
        measured_ns,
        flops=elements,
        read_bytes=size * elements,
        written_bytes=size * result,
        elements=result,
        arrays=2,
    )


def by_elements(
    op: OpClass, elements: int, reads: int, dtype: str, measured_ns: float
) -> KernelTime:
    """An element-wise kernel, or a copy, that reads `reads` arrays and writes one."""
    size = bytes_of(dtype)
    return KernelTime(
        op,
        (0, 0, 0, 0),
        dtype,
        measured_ns,
        flops=0 if op is OpClass.COPY else elements,
        read_bytes=size * elements * reads,
        written_bytes=size * elements,
        elements=elements,
        arrays=reads + 1,
    )
