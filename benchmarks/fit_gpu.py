"""Fit the constants of the GPU kernel models, print them, and write them into the presets.

    python -m benchmarks.fit_gpu            # fit and print
    python -m benchmarks.fit_gpu --write    # and update [chip.gpu.constants] of flint/clusters

Everything is fitted on one half of the shapes (`kernel_rows.half_of`); benchmarks/
accuracy_kernels.py reports the other half. The fit lowers the mean absolute percentage error by
Nelder-Mead within physical bounds (`flint.backends.cost.fitting`).

What the constants are of, and so what they do not hold for:
- GEMMs are replayed back to back from a CUDA graph: no gap between launches, the first operand and
  small weights warm in the L2, clocks hardly throttled. Real steps are slower; a cluster's derate
  is for that. Only products whose six weights fit `gemm.l2_share` of the L2 profit from it.
- The same grid on the same GPU with three versions of the library differs by 5 % on average: no
  model is better than that. B200's products ran on weights left uninitialised, 8-19 % fast.
- Attention is one layer of a serving framework, with the write to its cache of keys and values.
  Its launch of about 10 microseconds is that of several small kernels.
- Element-wise and row kernels are f32 in eager PyTorch 2.1, on arrays of 8 MB and more. Their
  launch is bounded by 6 microseconds: what is above comes from the timing of single calls.
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import kernel_rows as rows
from flint.backends.cost.chips.families.gpu.attention import attention_ns
from flint.backends.cost.chips.families.gpu.constants import Constants
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.families.gpu.memory import elementwise_ns, norm_ns, softmax_ns
from flint.backends.cost.chips.families.gpu.products import gemm_ns
from flint.backends.cost.fitting.fit import Bounds, fit
from flint.cluster.load import PRESETS as CLUSTERS
from flint.cluster.models import Cluster

#: Bounds and start of each constant.
GEMM: Bounds = {
    "gemm.efficiency": (0.5, 0.95, 0.92),
    "gemm.memory_efficiency": (0.6, 0.95, 0.85),
    "gemm.launch_ns": (1500, 8000, 2900),
    "gemm.overlap": (1, 12, 4),
    "gemm.step_ns": (0, 400, 60),
    "gemm.l2_share": (0.1, 1, 0.3),
    "gemm.split_ns": (0, 6000, 2600),
    "gemm.throttle": (0, 0.5, 0.1),
    "gemm.write_efficiency": (0.5, 1, 0.9),
    "gemm.epilogue_k": (0, 300, 100),
}
ATTENTION: Bounds = {
    "attention.launch_ns": (1500, 30000, 8000),
    "attention.memory_efficiency": (0.3, 0.95, 0.6),
}
DECODE: Bounds = {
    "decode.memory_efficiency": (0.2, 0.95, 0.7),
    "decode.launch_ns": (1500, 30000, 10000),
    "decode.head_ns": (0, 5000, 300),
}
BYTES: Bounds = {
    "memory_efficiency": (0.4, 0.95, 0.75),
    "launch_ns": (1500, 6000, 4000),
}
#: And what one of these models has beside them.
CYCLES: dict[str, Bounds] = {
    "elementwise": {"cycles": (0, 5, 0.3)},
    "softmax": {"cycles": (0, 5, 0.3)},
    "norm": {"row_cycles": (0, 3000, 1000)},
}
#: No measurements of the backward pass are public as data.
BACKWARD = (
    0.86,
    "FlashAttention-2 (Dao, 2023): up to 73 % of A100's peak forward, 63 % backward",
)
#: Presets that have the constants of another one: the same die.
SAME_DIE = {"a100-40-dgx": "a100-80-dgx", "gb200-nvl72": "b200-dgx"}
AICONFIGURATOR = "benchmarks/fit_gpu.py on aiconfigurator's {} of {}"
NEUSIGHT = "benchmarks/fit_gpu.py on NeuSight's {} of P100, P4, T4, V100 and A100"
#: Value, kind, source.
Fitted = dict[str, tuple[float, str, str]]


def bare(preset: str) -> GpuHardware:
    """A preset's hardware without constants."""
    return hardware_of(Cluster.load(preset).chip, Constants({}))


def with_constants(hardware: GpuHardware, values: dict[str, float]) -> GpuHardware:
    """The same hardware with other constants."""
    return replace(hardware, constants=Constants(values))


def fit_gemm(preset: str, half: int = 0) -> dict[str, float]:
    """GEMM constants of a preset from one half of its bf16 rows."""
    data = rows.gemms(rows.PRESETS[preset])
    data = data.select(data.half == half)
    hardware = bare(preset)
    return fit(
        GEMM, lambda c: gemm_ns(data.kernels, with_constants(hardware, c), "bf16"), data.measured_ns
    )


def fit_attention(preset: str, half: int = 0) -> dict[str, float]:
    """Prefill constants, with an efficiency for each head size that was measured."""
    data = rows.prefill(rows.PRESETS[preset])
    data = data.select(data.half == half)
    sizes = sorted({int(s) for s in data.kernels.dims[:, 3]})
    bounds = {f"attention.efficiency.{s}": (0.02, 0.95, 0.5) for s in sizes} | ATTENTION
    hardware = bare(preset)
    return fit(
        bounds,
        lambda c: attention_ns(data.kernels, with_constants(hardware, c), "bf16"),
        data.measured_ns,
    )


def fit_decode(preset: str, half: int = 0) -> dict[str, float]:
    """Constants of attention with one query per head."""
    data = rows.decode(rows.PRESETS[preset])
    data = data.select(data.half == half)
    hardware = bare(preset)
    return fit(
        DECODE,
        lambda c: attention_ns(data.kernels, with_constants(hardware, c), "bf16"),
        data.measured_ns,
    )


def fit_bytes(
    name: str, model: str, half: int = 0, devices: tuple[str, ...] = tuple(rows.NEUSIGHT_GPUS)
) -> dict[str, float]:
    """Shared constants of one of NeuSight's data sets over several GPUs."""
    parts = [rows.row_kernels(name, d) for d in devices]
    parts = [p.select(p.half == half) for p in parts]
    measured_ns = np.concatenate([p.measured_ns for p in parts])
    predict = {"elementwise": elementwise_ns, "softmax": softmax_ns, "norm": norm_ns}[model]

    def times(c: dict[str, float]) -> NDArray[np.float64]:
        hardware = (rows.neusight_hardware(d, c) for d in devices)
        return np.concatenate([predict(p.kernels, h) for p, h in zip(parts, hardware, strict=True)])

    return fit({f"{model}.{n}": b for n, b in (BYTES | CYCLES[model]).items()}, times, measured_ns)


def fit_shared() -> Fitted:
    """What all GPUs have in common."""
    fitted: Fitted = {}
    for name, model, what in (
        ("elem", "elementwise", "element-wise kernels"),
        ("softmax", "softmax", "softmax"),
        ("ln", "norm", "layer norm"),
    ):
        for key, value in fit_bytes(name, model).items():
            fitted[key] = (value, "fitted", NEUSIGHT.format(what))
    fitted["attention.backward_efficiency"] = (BACKWARD[0], "assumed", BACKWARD[1])
    return fitted


def fit_preset(preset: str, shared: Fitted) -> Fitted:
    """All constants of a preset."""
    gpu = rows.PRESETS[preset]
    fitted: Fitted = {}
    for what, function in (
        ("bf16 GEMMs", fit_gemm),
        ("prefill attention", fit_attention),
        ("decode attention", fit_decode),
    ):
        source = AICONFIGURATOR.format(what, gpu)
        fitted |= {name: (v, "fitted", source) for name, v in function(preset).items()}
    return fitted | shared


def as_toml(fitted: Fitted) -> str:
    """The table [chip.gpu.constants]."""
    lines = ["[chip.gpu.constants]"]
    for name, (value, kind, source) in fitted.items():
        text = repr(value) if math.isfinite(value) else "inf"
        lines.append(f'"{name}" = {{ value = {text}, kind = "{kind}", source = "{source}" }}')
    return "\n".join(lines) + "\n"


def put_table(text: str, table: str) -> str:
    """A cluster file with the table in place of its old one, or after [chip.gpu]."""
    old = re.compile(r"^\[chip\.gpu\.constants\]\n(?:(?!\[).*\n)*?(?=\n*\[|\Z)", re.MULTILINE)
    if old.search(text):
        return old.sub(lambda _: table, text, count=1)
    head, rest = text.split("[chip.gpu]\n", 1)
    body, network = rest.split("\n[", 1)
    return f"{head}[chip.gpu]\n{body}\n{table}\n[{network}"


def write(path: Path, fitted: Fitted) -> None:
    """Update one cluster file."""
    path.write_text(put_table(path.read_text("utf-8"), as_toml(fitted)), "utf-8")


def of_same_die(fitted: Fitted, preset: str) -> Fitted:
    """Constants for a preset that shares the die of a measured one."""
    return {
        name: (value, "assumed", f"as {preset}: {source}")
        for name, (value, _, source) in fitted.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update flint/cluster/presets/*.toml")
    parser.add_argument("--only", choices=list(rows.PRESETS), help="one preset")
    arguments = parser.parse_args()
    shared = fit_shared()
    for preset in [arguments.only] if arguments.only else list(rows.PRESETS):
        fitted = fit_preset(preset, shared)
        files = {preset: fitted} | {
            twin: of_same_die(fitted, preset) for twin, p in SAME_DIE.items() if p == preset
        }
        for name, constants in files.items():
            print(f"# {name}\n{as_toml(constants)}", flush=True)
            if arguments.write:
                write(CLUSTERS / f"{name}.toml", constants)


if __name__ == "__main__":
    main()
