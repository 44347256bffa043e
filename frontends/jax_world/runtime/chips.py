"""What JAX says of an accelerator that Flint has a cluster file for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.cluster.models import Chip

#: The chip of a script that names none, as the platform of `flint.trace` is CUDA.
DEFAULT_CHIP = "h100"

#: JAX's `device_kind` of the chips in `flint/cluster/presets`: what NVML calls a GPU
#: (`nvidia-smi -L`), and the names in JAX's own table of TPUs (jax/_src/pallas/mosaic/tpu_info.py).
_KINDS = {
    "A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB",
    "H100-SXM5-80GB": "NVIDIA H100 80GB HBM3",
    "H200-SXM-141GB": "NVIDIA H200",
    "B200-SXM-180GB": "NVIDIA B200",
    "GB200-186GB": "NVIDIA GB200",
    "L40S-48GB": "NVIDIA L40S",
    "MI300X-192GB": "AMD Instinct MI300X",
    "MI325X-256GB": "AMD Instinct MI325X",
    "MI355X-288GB": "AMD Instinct MI355X",
    "TPU v4": "TPU v4",
    "TPU v5e": "TPU v5 lite",
    "TPU v5p": "TPU v5",
    "TPU v6e": "TPU v6 lite",
}
#: CUDA's compute capability by the first word of a chip's name: developer.nvidia.com/cuda-gpus.
_CAPABILITIES = {
    "A100": "8.0",
    "H100": "9.0",
    "H200": "9.0",
    "B200": "10.0",
    "GB200": "10.0",
    "L40S": "8.9",
}
#: TPUs whose torus has three dimensions (jax.experimental.mesh_utils asks for coordinates).
_THREE_DIMENSIONS = ("TPU v4", "TPU v5p")
#: Chips of one host: 4 of a TPU in all its generations that JAX drives (cloud.google.com/tpu/docs),
#: 8 GPUs of a DGX.
_TPUS_PER_HOST = 4
_GPUS_PER_HOST = 8


@dataclass(frozen=True)
class ChipAnswers:
    """What a device of JAX answers: `platform` is "cuda", "rocm" or "tpu", as programs are lowered.

    `kind` is its `device_kind`, `memory_bytes` what XLA may use of its memory.
    """

    name: str
    platform: str
    kind: str
    memory_bytes: int
    capability: str = ""
    torus_dimensions: int = 0
    per_host: int = _GPUS_PER_HOST

    @property
    def backend(self) -> str:
        """What `jax.default_backend()` says: JAX calls devices of CUDA and ROCm "gpu"."""
        return "tpu" if self.platform == "tpu" else "gpu"


def answers_of(name: str) -> ChipAnswers:
    """What devices answer that are the chips of a cluster: a preset, an alias or a TOML file.

    Raises FlintError FL701 and FL702 for a cluster that cannot be read or is not known, and FL218
    for a chip that JAX does not drive.
    """
    from flint.cluster.named import load_cluster

    return _answers(load_cluster(name).chip)


def _answers(chip: Chip) -> ChipAnswers:
    memory = int(chip.memory_bytes.value)
    kind = _KINDS.get(chip.name, chip.name)
    if getattr(chip, "systolic", None) is not None:
        dimensions = 3 if chip.name in _THREE_DIMENSIONS else 2
        return ChipAnswers(chip.name, "tpu", kind, memory, "", dimensions, _TPUS_PER_HOST)
    if getattr(chip, "gpu", None) is None:
        raise FlintError(
            "FL218",
            f"JAX has no devices like {chip.name}: its chips are GPUs and TPUs",
            help="name another with --chip; flint clusters list shows them",
        )
    capability = _CAPABILITIES.get(chip.name.split("-")[0], "9.0")
    platform = "rocm" if chip.name.startswith("MI") else "cuda"
    return ChipAnswers(chip.name, platform, kind, memory, capability)
