"""What XLA has to know of a GPU to compile for it: stream_executor's GpuTargetConfigProto as text.

Numbers are those that XLA's own descriptions of these chips have (openxla/xla,
xla/backends/gpu/target_config/specs, read on 2026-11-23), which are what CUDA reports of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: Version of cuDNN that the compiler may assume, as CUDA builds of JAX 0.10 ask for.
_CUDNN = (9, 10, 0)


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """One GPU. Bandwidth is of its memory; `multiprocessors` are SMs, each with `lanes` f32 units."""

    name: str
    description: str
    capability: int
    multiprocessors: int
    memory_bytes: int
    bandwidth_bytes_per_s: int
    l2_bytes: int
    clock_ghz: float
    shared_bytes: int = 233472
    shared_bytes_of_block: int = 232448
    lanes: int = 128
    accelerated: bool = True
    links: int = 18
    gpus_per_host: int = 8

    def text(self) -> str:
        """The description as protobuf's text form."""
        extension = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        major, minor, patch = _CUDNN
        return (
            "gpu_device_info {\n"
            "  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048\n"
            "  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64\n"
            "  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535\n"
            "  registers_per_core_limit: 65536 registers_per_block_limit: 65536\n"
            f"  shared_memory_per_block: 49152 shared_memory_per_core: {self.shared_bytes}\n"
            f"  shared_memory_per_block_optin: {self.shared_bytes_of_block}\n"
            f"  core_count: {self.multiprocessors} fpus_per_core: {self.lanes}\n"
            f"  memory_bandwidth: {self.bandwidth_bytes_per_s} l2_cache_size: {self.l2_bytes}\n"
            f"  clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory_bytes}\n"
            f"  cuda_compute_capability {{ major: {self.capability} "
            f"feature_extension: {extension} }}\n"
            f"  device_interconnect_info {{ active_links: {self.links} }}\n"
            f'  name: "{self.description}"\n'
            "}\n"
            'platform_name: "CUDA"\n'
            f"dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}\n"
            f'device_description_str: "{self.description}"\n'
        )


_A100 = GpuTarget(
    "a100",
    "NVIDIA A100-SXM4-80GB",
    capability=8,
    multiprocessors=108,
    memory_bytes=85100068864,
    bandwidth_bytes_per_s=2039040000000,
    l2_bytes=41943040,
    clock_ghz=1.41,
    shared_bytes=167936,
    shared_bytes_of_block=166912,
    lanes=64,
    accelerated=False,
    links=12,
)
_H100 = GpuTarget(
    "h100",
    "NVIDIA H100 80GB HBM3",
    capability=9,
    multiprocessors=132,
    memory_bytes=84942979072,
    bandwidth_bytes_per_s=3352320000000,
    l2_bytes=52428800,
    clock_ghz=1.98,
)
_B200 = GpuTarget(
    "b200",
    "NVIDIA B200",
    capability=10,
    multiprocessors=148,
    memory_bytes=191514411008,
    bandwidth_bytes_per_s=7672320000000,
    l2_bytes=132644864,
    clock_ghz=1.965,
)
_ALL = (
    _A100,
    replace(
        _A100,
        name="a100-40",
        description="NVIDIA A100-SXM4-40GB",
        memory_bytes=42331013120,
        bandwidth_bytes_per_s=1555200000000,
    ),
    _H100,
    replace(
        _H100,
        name="h200",
        description="NVIDIA H200 141GB HBM3e",
        memory_bytes=151397597184,
        bandwidth_bytes_per_s=4800000000000,
    ),
    _B200,
    replace(
        _B200,
        name="gb200",
        description="NVIDIA GB200",
        multiprocessors=152,
        memory_bytes=197897748480,
        bandwidth_bytes_per_s=7928064000000,
        l2_bytes=135528448,
        clock_ghz=2.062,
        gpus_per_host=4,
    ),
)
#: By name.
GPU_TARGETS: Final = {target.name: target for target in _ALL}
