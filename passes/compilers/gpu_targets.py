"""What XLA has to know of a GPU to compile for it: stream_executor's GpuTargetConfigProto as text.

Numbers are those that XLA's own descriptions of these chips have (openxla/xla,
xla/backends/gpu/target_config/specs, read on 2026-11-26), which are what CUDA and HIP report of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: What all chips of a platform have in common, and of the rest what has no field here.
_LIMITS: Final = {
    "cuda": "threads_per_warp: 32 shared_memory_per_block: 49152\n"
    "  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64\n"
    "  block_dim_limit_y: 65535 block_dim_limit_z: 65535\n"
    "  registers_per_core_limit: 65536 registers_per_block_limit: 65536",
    "rocm": "block_dim_limit_y: 65536 block_dim_limit_z: 65536",
}
#: The libraries of convolutions: cuDNN is of the version that CUDA builds of JAX 0.10 ask for.
_LIBRARIES: Final = {"cuda": "{ major: 9 minor: 10 patch: 0 }", "rocm": "{}"}


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """One GPU. Bandwidth is of its memory; `multiprocessors` are SMs or compute units, each with
    `lanes` f32 units and `shared_bytes`. `architecture` are fields of the description that other
    generations have not, `platform` is what JAX lowers for, `caveat` what is not known of the chip.
    """

    name: str
    description: str
    architecture: str
    multiprocessors: int
    memory_bytes: int
    bandwidth_bytes_per_s: int
    l2_bytes: int
    clock_ghz: float
    shared_bytes: int = 233472
    lanes: int = 128
    gpus_per_host: int = 8
    platform: str = "cuda"
    caveat: str = ""

    def text(self) -> str:
        """The description as protobuf's text form."""
        return (
            "gpu_device_info {\n"
            "  threads_per_block_limit: 1024 threads_per_core_limit: 2048\n"
            f"  block_dim_limit_x: 2147483647 {_LIMITS[self.platform]}\n"
            f"  {self.architecture}\n"
            f"  core_count: {self.multiprocessors} fpus_per_core: {self.lanes}\n"
            f"  shared_memory_per_core: {self.shared_bytes}\n"
            f"  memory_bandwidth: {self.bandwidth_bytes_per_s} l2_cache_size: {self.l2_bytes}\n"
            f"  clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory_bytes}\n"
            f'  name: "{self.description}"\n'
            "}\n"
            f'platform_name: "{self.platform.upper()}"\n'
            f"dnn_version_info {_LIBRARIES[self.platform]}\n"
            f'device_description_str: "{self.description}"\n'
        )


def _cuda(capability: int, extension: str = "ACCELERATED_FEATURES", links: int = 18,
          block_bytes: int = 232448) -> str:  # fmt: skip
    """Compute capability, NVLinks, and the shared memory that one block may ask for."""
    return (
        f"cuda_compute_capability {{ major: {capability} feature_extension: {extension} }}\n"
        f"  device_interconnect_info {{ active_links: {links} }}\n"
        f"  shared_memory_per_block_optin: {block_bytes}"
    )


def _rocm(name: str, shared_bytes: int, wavefront: int = 64, registers: int = 131072) -> str:
    """The name with its features, what one workgroup may share, and what its threads have."""
    return (
        f'rocm_compute_capability {{ gcn_arch_name: "{name}" }} threads_per_warp: {wavefront}\n'
        f"  shared_memory_per_block: {shared_bytes} shared_memory_per_block_optin: {shared_bytes}\n"
        f"  registers_per_core_limit: {registers} registers_per_block_limit: {registers}"
    )


_A100 = GpuTarget(
    "a100",
    "NVIDIA A100-SXM4-80GB",
    _cuda(8, "NONE", links=12, block_bytes=166912),
    multiprocessors=108,
    memory_bytes=85100068864,
    bandwidth_bytes_per_s=2039040000000,
    l2_bytes=41943040,
    clock_ghz=1.41,
    shared_bytes=167936,
    lanes=64,
)
_H100 = GpuTarget(
    "h100",
    "NVIDIA H100 80GB HBM3",
    _cuda(9),
    multiprocessors=132,
    memory_bytes=84942979072,
    bandwidth_bytes_per_s=3352320000000,
    l2_bytes=52428800,
    clock_ghz=1.98,
)
_B200 = GpuTarget(
    "b200",
    "NVIDIA B200",
    _cuda(10),
    multiprocessors=148,
    memory_bytes=191514411008,
    bandwidth_bytes_per_s=7672320000000,
    l2_bytes=132644864,
    clock_ghz=1.965,
)
# Memory and its bandwidth are those of AMD's data sheets: XLA's description of MI300X has the memory of
# a larger chip (252 GiB), and that of MI350X 7/8 of it. The L2 is that of one die.
_MI300X = GpuTarget(
    "mi300x",
    "AMD Instinct MI300X",
    _rocm("gfx942:sramecc+:xnack-", 65536),
    multiprocessors=304,
    memory_bytes=192 << 30,
    bandwidth_bytes_per_s=5300000000000,
    l2_bytes=4194304,
    clock_ghz=2.1,
    shared_bytes=65536,
    platform="rocm",
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
    _MI300X,
    replace(
        _MI300X,
        name="mi325x",
        description="AMD Instinct MI325X",
        memory_bytes=256 << 30,
        bandwidth_bytes_per_s=6000000000000,
    ),
    replace(  # MI350X with a higher clock
        _MI300X,
        name="mi355x",
        description="AMD Instinct MI355X",
        architecture=_rocm("gfx950:sramecc+:xnack-", 163840),
        multiprocessors=256,
        memory_bytes=288 << 30,
        bandwidth_bytes_per_s=8000000000000,
        clock_ghz=2.4,
        shared_bytes=163840,
    ),
    replace(  # AMD announced memory and bandwidth (CES 2026); XLA's mi450 has placeholders for the rest
        _MI300X,
        name="mi455x",
        description="AMD Instinct MI455X",
        architecture=_rocm("gfx1250", 65536, wavefront=32, registers=65536),
        multiprocessors=64,
        memory_bytes=432 * 10**9,
        bandwidth_bytes_per_s=19600000000000,
        l2_bytes=8388608,
        clock_ghz=2.4,
        caveat="mi455x is announced: memory and bandwidth are AMD's, its number of units and caches "
        "placeholders of XLA's",
    ),
)
#: By name.
GPU_TARGETS: Final = {target.name: target for target in _ALL}
