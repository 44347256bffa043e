"""Pairs of programs that differ in sizes, layers or mesh: what `flint grow` makes of one is held against the other.

Both are captured from their source. `measured` says what is compared: totals of one device in one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flint.backends.cost.estimate import estimate
from flint.backends.cost.memory.memory import step_memory
from flint.capturing import capture
from flint.cluster.named import load_cluster
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest

ROOT = Path(__file__).parents[2]
LLAMA, MIXTRAL = "examples/llama_jax.py", "benchmarks/sharing/moe_sizes_jax.py"
DECODE, RING = "examples/decode_jax.py", "examples/ring_attention_jax.py"
TORCH, ENCODERS = "examples/torch_llama.py", "benchmarks/sharing/encoders_jax.py"


@dataclass(frozen=True, slots=True)
class Captured:
    """A program on a mesh: a model file (and entry), and its settings."""

    model: str
    mesh: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, folder: Path | None = None) -> Workload:
        """The captured workload; kept in `folder` if there is one."""
        settings = tuple(f"{k}={v}" for k, v in self.settings.items())
        name = hashlib.sha256(repr((self.model, self.mesh, settings)).encode()).hexdigest()[:16]
        kept = None if folder is None else folder / f"{name}.flint"
        if kept is not None and kept.exists():
            return Workload.load(kept)
        path, _, entry = self.model.partition(":")
        model = str(ROOT / path) + (f":{entry}" if entry else "")
        request = CaptureRequest(model, self.mesh, settings=settings)
        found = capture(request).workload
        if kept is not None:
            found.save(kept)
        return found


@dataclass(frozen=True, slots=True)
class Pair:
    """What is grown, by which options, and what it should come to be."""

    name: str
    small: Captured
    real: Captured
    options: Mapping[str, Any]


def pair(
    name: str, file: str, small: str, real: str, options: Mapping[str, Any], /, **settings: Any
) -> Pair:
    """Both sides have `settings`; one that is a tuple has the value of the small side, and of the real one.

    The small mesh has 8 devices, unless `small` says another.
    """
    sides = [
        {k: v[i] if isinstance(v, tuple) else v for k, v in settings.items()} for i in range(2)
    ]
    return Pair(
        name,
        Captured(file, small, sides[0]),
        Captured(file, real, sides[1]),
        {"mesh": real, **options} if small != real else dict(options),
    )


def measured(workload: Workload, cluster: str = "h100-dgx") -> dict[str, float]:
    """Totals of the first program: FLOPs, bytes and counts of collectives by kind and axes, memory, time."""
    found = totals(workload.programs[0])
    values: dict[str, float] = {
        "rows": len(workload.programs[0]),
        "FLOPs": found.flops,
        "parameter bytes": found.parameter_bytes,
        "peak memory": max(use.peak_bytes for use in step_memory(workload)),
        "step time": estimate(workload, EstimateRequest(load_cluster(cluster))).step_time_ns,
        "collective bytes": found.comm_bytes,
    }
    for part in found.communication:
        values[f"bytes {part.kind} {part.axes}"] = part.comm_bytes
        values[f"count {part.kind} {part.axes}"] = part.count
    return values


_DEEP: dict[str, Any] = {"num_layers": (8, 32)}


def pairs() -> tuple[Pair, ...]:
    """All pairs, the bar's first: 8 layers on 8 devices to 32 layers on 64."""
    return (*_bar(), *_sizes(), *_other_models())


def _bar() -> list[Pair]:
    deep = {"layers": 32}
    found = [
        pair(f"llama {parallel} {small} -> {real}", LLAMA, small, real, deep, **_DEEP,
             parallel=parallel, seq=4096)
        for parallel, small, real in (
            ("fsdp+tp", "4x2", "16x4"), ("fsdp+tp", "2x4", "8x8"), ("fsdp+tp+sp", "4x2", "16x4"),
            ("fsdp+tp+sp", "2x4", "8x8"), ("fsdp", "8x1", "64x1"), ("fsdp", "4x2", "16x4"),
            ("tp+sp", "4x2", "8x8"),
        )
    ]  # fmt: skip
    found.append(
        pair("llama remat=none 4x2 -> 16x4", LLAMA, "4x2", "16x4", deep, **_DEEP, remat="none",
             seq=4096)
    )  # fmt: skip
    found.append(
        pair("llama optimizer=sharded 4x2 -> 16x4", LLAMA, "4x2", "16x4", deep, **_DEEP,
             parallel="tp", optimizer="sharded", seq=4096)
    )  # fmt: skip
    found.append(
        pair("llama unrolled 4x2 -> 16x4", LLAMA, "4x2", "16x4", deep, **_DEEP, layers="unrolled",
             seq=4096)
    )  # fmt: skip
    for dispatch in ("alltoall", "einsum"):
        found.append(
            pair(f"mixtral {dispatch} 4x2 -> 16x4", MIXTRAL, "4x2", "16x4", deep, **_DEEP,
                 dispatch=dispatch)
        )  # fmt: skip
    found.append(
        pair("torch llama fsdp+tp+sp 4x2", TORCH, "4x2", "4x2", deep, **_DEEP, parallel="fsdp+tp+sp",
             seq=4096)
    )  # fmt: skip
    found.append(
        pair("torch llama fsdp+tp 4x2 -> 16x4", TORCH, "4x2", "16x4", deep, **_DEEP, seq=4096)
    )
    found.append(
        pair("torch llama fsdp+tp+sp 4x2 -> 16x4", TORCH, "4x2", "16x4", deep, **_DEEP,
             parallel="fsdp+tp+sp", seq=4096)
    )  # fmt: skip
    return found


def _sizes() -> list[Pair]:
    short: dict[str, Any] = {"num_layers": 4, "seq": 4096}
    larger = {"layers": 80, "width": 8192, "heads": 64, "ffn": 28_672}
    return [
        pair("llama 8B -> 70B 4x2 -> 16x4", LLAMA, "4x2", "16x4", larger, model=("8b", "70b"),
             num_layers=(8, 80), seq=4096),
        pair("llama longer", LLAMA, "4x2", "4x2", {"sequence": 16_384}, **{**short, "seq": (4096, 16_384)}),
        pair("llama sp longer", LLAMA, "4x2", "4x2", {"sequence": "4x"}, parallel="fsdp+tp+sp",
             **{**short, "seq": (4096, 16_384)}),
        pair("llama batch 2x", LLAMA, "4x2", "4x2", {"batch": "2x"}, **short, batch=(8, 16)),
        pair("llama batch kept 4x2 -> 8x2", LLAMA, "4x2", "8x2", {"keep_global_batch": True},
             **short, batch=16),
        pair("mixtral 16 experts", MIXTRAL, "4x2", "4x2", {"experts": 16}, num_layers=4,
             experts=(8, 16)),
        pair("mixtral einsum 16 experts", MIXTRAL, "4x2", "4x2", {"experts": 16}, num_layers=4,
             experts=(8, 16), dispatch="einsum"),
        pair("mixtral longer", MIXTRAL, "4x2", "4x2", {"sequence": 8192}, num_layers=4,
             seq=(4096, 8192)),
        pair("mixtral wider", MIXTRAL, "4x2", "4x2", {"width": "2x", "ffn": "2x", "heads": 64,
             "kv_heads": 16}, num_layers=4, dim=(4096, 8192), ffn_dim=(14_336, 28_672),
             heads=(32, 64), kv_heads=(8, 16)),
    ]  # fmt: skip


def _other_models() -> list[Pair]:
    large = {"layers": 24, "width": 1024, "heads": 16, "ffn": 4096}
    found = [
        pair("decode 8B 4x2 -> 16x4", DECODE, "4x2", "16x4", {"layers": 32}, model="8b",
             length=4096),
        pair("decode 8B -> 70B", DECODE, "4x2", "8x8", {"layers": 80, "width": 8192, "heads": 64,
             "ffn": 28_672}, model=("8b", "70b")),
        pair("decode longer", DECODE, "4x2", "4x2", {"sequence": "2x"}, model="8b",
             length=(4096, 8192)),
        pair("ring attention 2x4 -> 4x16", RING, "2x4", "4x16", {}),
        pair("ring attention longer", RING, "2x4", "2x4", {"sequence": "2x"}, seq=(131_072, 262_144)),
        pair("t5 3B -> 11B 4x2 -> 16x4", ENCODERS + ":t5", "4x2", "16x4",
             {"heads": 128, "ffn": 65_536}, model=("3b", "11b")),
    ]  # fmt: skip
    for name, models in {"bert": ("base", "large"), "vit": ("b16", "l16")}.items():
        for training in ("true", "false"):
            found.append(
                pair(f"{name} base -> large 4x2 -> 16x4 training={training}",
                     f"{ENCODERS}:{name}", "4x2", "16x4", large, model=models, training=training)
            )  # fmt: skip
    return found
