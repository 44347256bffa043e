"""What a program that asks for its GPU is told: the properties of a named chip."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flint.cluster.named import load_cluster

#: The chip of a recorded program that names none.
DEFAULT_CHIP = "h100"


@dataclass(frozen=True)
class ChipProperties:
    """What `torch.cuda.get_device_properties` says of a chip.

    `name` is what its driver reports, `capability` CUDA's compute capability.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    sms: int
    l2_bytes: int
    assumed: str = ""  #: a sentence for the user, where not all of it is the chip's


# Names as nvidia-smi prints them; capabilities from developer.nvidia.com/cuda-gpus.
_REPORTED = {
    "A100-SXM4-40GB": ("NVIDIA A100-SXM4-40GB", (8, 0)),
    "A100-SXM4-80GB": ("NVIDIA A100-SXM4-80GB", (8, 0)),
    "H100-SXM5-80GB": ("NVIDIA H100 80GB HBM3", (9, 0)),
    "H200-SXM-141GB": ("NVIDIA H200", (9, 0)),
    "B200-SXM-180GB": ("NVIDIA B200", (10, 0)),
    "GB200-186GB": ("NVIDIA GB200", (10, 0)),
    "L40S-48GB": ("NVIDIA L40S", (8, 9)),
    "MI300X-192GB": ("AMD Instinct MI300X", (9, 4)),  # gfx942, as ROCm's PyTorch says it
}


def chip_properties(chip: str) -> ChipProperties:
    """The properties of the chip of a cluster: a preset's name, or a cluster file.

    A GPU of the user's own is told under its own name, with the compute capability of an H100; a
    chip that is no GPU is told as an H100, as PyTorch's programs ask for CUDA. Raises FlintError
    FL702 if there is no such cluster.
    """
    found = load_cluster(chip).chip
    gpu = getattr(found, "gpu", None)
    if gpu is None:
        told = chip_properties(DEFAULT_CHIP)
        return replace(told, assumed=f"{found.name} is not a GPU: the program sees {told.name}")
    name, capability = _REPORTED.get(found.name, (found.name, (9, 0)))
    is_known = found.name in _REPORTED
    assumed = f"the compute capability of {found.name} is not known: the program sees 9.0"
    return ChipProperties(
        name,
        capability,
        int(found.memory_bytes.value),
        int(gpu.sms.value),
        int(gpu.l2_bytes.value),
        "" if is_known else assumed,
    )
