"""Accelerators beside CUDA's and HIP's: what their events are called, and how they are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Categories of Kineto (libkineto's ActivityType), and what names of operators begin with."""

    name: str
    activity: str
    calls: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


ACCELERATORS = (
    Accelerator("MTIA", "MTIA", ("mtia_runtime",), ("mtia_ccp_events", "mtia_workloadd"), ("mtia::",)),
    Accelerator("Intel XPU", "XPU", ("xpu_runtime", "xpu_driver"), (), ("xpu::", "torch_ipex::", "xccl:")),
    Accelerator("Gaudi", "HPU", (), ("hpu_op",), ("hpu::", "hccl:")),
    Accelerator("Ascend NPU", "PrivateUse1", (), (), ("npu::", "hcom_")),
    Accelerator("a device of PyTorch's PrivateUse1", "PrivateUse1", ("privateuse1_runtime", "privateuse1_driver"), (), ()),
)  # fmt: skip
CALLS = tuple(c for a in ACCELERATORS for c in a.calls)
KERNELS = tuple(c for a in ACCELERATORS for c in a.kernels)
_NEUTRAL = (
    "record with activities=[ProfilerActivity.CPU, and that of the device: CUDA (also on ROCm), XPU, "
    "MTIA, HPU or PrivateUse1]"
)
_CUDA = (
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (CUDA also on ROCm; XPU, MTIA, "
    "HPU or PrivateUse1 on other accelerators)"
)


def how_to_record(categories: Mapping[str, int], operators: Iterable[str], device: str) -> str:
    """What to do for a profile without kernels, by the accelerator that it seems to be of.

    `device` is the name that the file has for it, "" for none.
    """
    names = tuple(operators)
    for one in ACCELERATORS:
        is_there = any(categories.get(c) for c in one.calls + one.kernels)
        if is_there or any(n.startswith(one.operators) for n in names if one.operators):
            return (
                f"the program seems to run on {one.name}: record with "
                f"activities=[ProfilerActivity.CPU, ProfilerActivity.{one.activity}]"
            )
    has_cuda = any(categories.get(c) for c in ("cuda_runtime", "cuda_driver"))
    known = has_cuda or any(word in device for word in ("NVIDIA", "Tesla", "GeForce", "AMD"))
    return _CUDA if known or not device else _NEUTRAL
