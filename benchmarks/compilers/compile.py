"""XLA's whole compilers without a device: in a child, module by module, kept in a folder.

    python -m benchmarks.compilers.compile < list of {"module", "compiler", "devices"}

The plugins are those that JAX finds by itself (packages jax-cuda12-plugin, jax-cuda12-pjrt and
libtpu, of the versions of jaxlib). A kept module is compiled again when its StableHLO changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flint.passes.mlir import module_text
from flint.steps.captured import Captured

#: Chips of a TPU v5p slice by number of devices.
TPU_TOPOLOGIES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}
#: What the GPU compiler has to know of an H100 SXM to compile for it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
GPUS_PER_HOST = 8
#: What makes the plugins work where there is no device.
ENVIRONMENT = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


@dataclass(frozen=True)
class Kept:
    """A compiled program in a folder: `NAME.COMPILER.pb` and, beside it, facts or an error."""

    module: Path

    @classmethod
    def of(cls, folder: Path, name: str, compiler: str) -> Kept:
        """Where the program called `name` is."""
        return cls(folder / f"{'-'.join(name.replace(',', '').split())}.{compiler}.pb")

    @property
    def facts(self) -> dict[str, Any]:
        """`sha256` of the StableHLO, `memory` in bytes by name, or `error`; empty: not compiled."""
        path = self.module.with_suffix(".json")
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def source(self) -> Path:
        """The StableHLO that was compiled."""
        return self.module.with_suffix(".mlir")

    def is_of(self, captured: Captured) -> bool:
        """Whether it was made of this StableHLO, from whichever lines of source."""
        return bool(self.facts.get("sha256") == digest(captured))


def digest(captured: Captured) -> str:
    """SHA-256 of the StableHLO without locations."""
    return hashlib.sha256(module_text(captured.module).encode()).hexdigest()


def compile_all(
    wanted: Iterable[tuple[Kept, Captured]], compiler: str, python: str = sys.executable
) -> None:
    """Compile what is not kept, in one child after another: a child that dies loses one module."""
    waiting = []
    for kept, captured in wanted:
        if not kept.is_of(captured):
            kept.source.write_bytes(captured.module)
            job = {"module": str(kept.module), "devices": captured.mesh.size}
            waiting.append((kept, {**job, "sha256": digest(captured)}))
    while waiting:
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("JAX_PLATFORMS", None)
        command = [python, "-m", "benchmarks.compilers.compile", compiler]
        request = json.dumps([job for _, job in waiting])
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, check=False, env=environment
        )
        left = [(kept, job) for kept, job in waiting if kept.source.exists()]
        if left:
            lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
            _write_facts(*left[0], {"error": lines[-1]})
        waiting = left[1:]


def _write_facts(kept: Kept, job: dict[str, Any], facts: dict[str, Any]) -> None:
    """Note what became of a module; its StableHLO goes, which says that it is done."""
    text = json.dumps({"sha256": job["sha256"], **facts}, indent=1)
    kept.module.with_suffix(".json").write_text(text + "\n")
    kept.source.unlink()


# the child --------------------------------------------------------------------------------------


def main() -> None:
    """Compile every module of the list on the standard input."""
    compiler = sys.argv[1]
    for job in json.load(sys.stdin):
        kept = Kept(Path(job["module"]))
        found = devices(compiler, job["devices"])
        try:
            module, memory = compiled(kept.source.read_bytes(), found)
        except RuntimeError as error:  # what XLA refuses
            _write_facts(kept, job, {"error": str(error).splitlines()[0]})
            continue
        kept.module.write_bytes(module)
        _write_facts(kept, job, {"memory": memory})
    os._exit(0)  # libtpu's threads do not end by themselves


def compiled(stablehlo: bytes, found: list[Any]) -> tuple[bytes, dict[str, int]]:
    """The optimised HloModuleProto of a module for devices, and its memory in bytes by name."""
    from jaxlib import xla_client

    executable = found[0].client.compile(
        parse_module(stablehlo), xla_client.DeviceList(tuple(found)), compile_options(found)
    )
    stats = executable.get_compiled_memory_stats()
    memory = {
        name: int(getattr(stats, f"{name}_size_in_bytes"))
        for name in ("argument", "output", "alias", "temp")
    }
    return executable.hlo_modules()[0].as_serialized_hlo_module_proto(), memory


def compile_options(found: list[Any]) -> Any:
    """Options that compile a module with Shardy for the devices `found`, one partition each."""
    import numpy as np
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(found)
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    assignment = np.array([[d.id for d in found]], dtype=np.int64)
    options.device_assignment = xla_client.DeviceAssignment.create(assignment)
    return options


def parse_module(module: bytes) -> Any:
    """StableHLO, parsed outside of Flint."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return ir.Module.parse(module)


@cache
def devices(compiler: str, count: int) -> list[Any]:
    """Devices that are not there: H100s in hosts of 8, or a slice of TPU v5p."""
    from jax.experimental import topologies

    if compiler == "tpu":
        name = f"v5p:{TPU_TOPOLOGIES[count]}"
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    here = min(count, GPUS_PER_HOST)
    topology = f"1x{count // here}x{here}"  # slices, hosts of a slice, devices of a host
    found = topologies.get_topology_desc("", platform="cuda", topology=topology, target_config=H100)
    return list(found.devices)


if __name__ == "__main__":
    main()
