"""Communication of the same programs by Flint, XLA's partitioner and XLA's GPU and TPU compilers.

    pip install --target plugins --no-deps jax-cuda12-pjrt==0.10.2 libtpu==0.0.42.1
    python benchmarks/compilers.py --plugins plugins
    python benchmarks/compilers.py --plugins plugins --only "llama tp" --compilers gpu --keep hlo
    python benchmarks/compilers.py --plugins plugins --zoo moe_einsum,llama_hsdp

The compilers run whole, for an H100 and a TPU v5p that need not be there: jax-cuda12-pjrt (of the
version of jaxlib) and libtpu describe their devices themselves. What they emit, the optimised
module, is read back with Flint's HLO reader. Without the plugins the program says so and ends.

Prints a Markdown section for each program: executions and input bytes of one device in one step by
kind and axes, and the bytes that rings would send. `--keep DIR` keeps the optimised modules.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.frontends.files.hlo import read_hlo
from flint.frontends.jax_step.program import capture_jax
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import run_passes
from flint.passes.partition import partitioner
from flint.passes.profiles import profile
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.steps.captured import Captured
from flint.steps.model_file import Target, importable, load_step

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"gpu": "jax_plugins/xla_cuda12/xla_cuda_plugin.so", "tpu": "libtpu/libtpu.so"}
PACKAGES = {"gpu": "jax-cuda12-pjrt", "tpu": "libtpu"}
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

#: (kind, axes) to [executions, input bytes] of one device in one step.
Traffic = dict[tuple[str, str], list[int]]


@dataclass(frozen=True)
class Case:
    """One program: a model file of examples/, the mesh and the settings of its entry."""

    name: str
    file: str
    mesh: str
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """How to capture the program by hand."""
        settings = "".join(f" --set {k}={v}" for k, v in self.settings.items())
        return f"`examples/{self.file} --mesh {self.mesh}{settings}`"

    def capture(self, platform: str) -> Captured:
        """The program as StableHLO, lowered for a platform."""
        target = Target.parse(str(ROOT / "examples" / self.file))
        with importable(target.path.parent):
            loaded = load_step(target, self.mesh, settings=self.settings)
            step = replace(loaded.step, platform=platform)
            return capture_jax(step, loaded.mesh, loaded.source)


@dataclass(frozen=True)
class Small:
    """One program of tests/zoo.py."""

    name: str

    @property
    def origin(self) -> str:
        """Where the program is."""
        return f"`tests/zoo.py`, on {self._example.mesh}"

    def capture(self, platform: str) -> Captured:
        """The program as StableHLO, lowered for a platform."""
        return capture_jax(replace(self._example.step(), platform=platform), self._example.mesh)

    @property
    def _example(self) -> Any:
        sys.path[:] = [str(ROOT), *(p for p in sys.path if p != str(ROOT))]
        from tests.zoo import zoo

        return zoo()[self.name]


def _cases() -> Iterator[Case]:
    llama = {"num_layers": "4", "seq": "2048"}
    for parallel, remat in [
        ("fsdp", "full"),
        ("tp", "full"),
        ("fsdp+tp", "full"),
        ("fsdp+tp", "none"),
        ("fsdp+tp+sp", "full"),
        ("fsdp+tp+sp", "none"),
    ]:
        settings = {**llama, "parallel": parallel, "remat": remat}
        yield Case(f"llama {parallel}, remat {remat}", "llama_jax.py", "4x4", settings)
    for dispatch in ("einsum", "alltoall"):
        settings = {"num_layers": "4", "seq": "1024", "dispatch": dispatch}
        yield Case(f"mixtral {dispatch}", "mixtral_jax.py", "4x4", settings)
    yield Case("resnet50", "resnet50_jax.py", "4x2")
    yield Case("resnet50 spatial", "resnet50_jax.py", "4x2", {"spatial": "true"})
    yield Case("ring attention", "ring_attention_jax.py", "2x8", {"seq": "16384"})
    yield Case("decode", "decode_jax.py", "2x8", {"num_layers": "4", "tokens": "4"})


@dataclass(frozen=True)
class Column:
    """What one way to compile says about one program."""

    traffic: Traffic
    ring_bytes: float


def main() -> None:
    """Compare the chosen programs and print a section for each."""
    options = _options()
    if options.compile:
        _compile(options.compile, options.plugins, options.devices)
        return
    compilers = options.compilers.split(",")
    missing = [c for c in compilers if not (options.plugins / LIBRARIES[c]).exists()]
    if missing:
        packages = " ".join(PACKAGES[c] for c in missing)
        raise SystemExit(
            f"{options.plugins} has no plugin for {', '.join(missing)}: "
            f"pip install --target {options.plugins} --no-deps {packages}, of the versions named in "
            f"the docstring of {Path(__file__).name}"
        )
    small = [Small(name) for name in options.zoo.split(",") if name]
    cases: list[Case | Small] = [*small] if small else [*_cases()]
    for case in cases:
        if options.only in case.name:
            print(_section(case, _columns(case, compilers, options)), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plugins", type=Path, default=Path("plugins"))
    parser.add_argument("--compilers", default="gpu,tpu")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--zoo", default="", help="programs of tests/zoo.py instead, by name")
    parser.add_argument("--keep", type=Path, help="a folder for the optimised modules")
    parser.add_argument("--compile", choices=LIBRARIES, help=argparse.SUPPRESS)  # the child
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _columns(
    case: Case | Small, compilers: list[str], options: argparse.Namespace
) -> dict[str, Column | str]:
    """Each way to compile by name: what it communicates, or why it failed."""
    captured = case.capture("cuda")
    shardy = partitioner("shardy")(captured)
    found: dict[str, Column | str] = {
        "shardy": _column(run_passes(shardy, [DropDeadCode()])),
        "xla-gpu profile": _column(run_passes(shardy, profile("xla-gpu").passes)),
        "xla": _column(run_passes(partitioner("xla")(captured), [DropDeadCode()])),
    }
    with ThreadPoolExecutor(len(LIBRARIES)) as pool:
        jobs = {c: pool.submit(_optimised, case, c, captured, options) for c in compilers}
    for compiler, job in jobs.items():
        program = job.result()
        found[f"{compiler} compiler"] = program if isinstance(program, str) else _column(program)
    return found


def _optimised(
    case: Case | Small, compiler: str, captured: Captured, options: argparse.Namespace
) -> Program | str:
    """The program that a whole compiler makes, or the last line of what it said."""
    module = captured.module if compiler == "gpu" else case.capture(compiler).module
    command = [sys.executable, __file__, "--compile", compiler]
    command += ["--plugins", str(options.plugins), "--devices", str(captured.mesh.size)]
    done = subprocess.run(command, input=module, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit {done.returncode}"
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        name = "-".join(case.name.replace(",", "").split())
        (options.keep / f"{name}.{compiler}.pb").write_bytes(done.stdout)
    try:
        made = read_hlo(done.stdout, captured.mesh, trip_counts=captured.trip_counts)
        assert isinstance(made, Program), "what a compiler gives is partitioned"
        return made
    except FlintError as error:
        return str(error)


# the child --------------------------------------------------------------------------------------


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


def _compile(compiler: str, plugins: Path, devices: int) -> None:
    """Compile the StableHLO on the standard input; write the optimised HloModuleProto."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    found = _gpus(plugins, devices) if compiler == "gpu" else _tpus(plugins, devices)
    from jaxlib import xla_client

    options = compile_options(found)
    executable = found[0].client.compile(
        parse_module(sys.stdin.buffer.read()), xla_client.DeviceList(tuple(found)), options
    )
    out.write(executable.hlo_modules()[0].as_serialized_hlo_module_proto())
    out.flush()
    os._exit(0)  # libtpu's threads do not end by themselves


def parse_module(module: bytes) -> Any:
    """StableHLO, parsed outside of Flint."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return ir.Module.parse(module)


def _gpus(plugins: Path, devices: int) -> list[Any]:
    from jax._src.lib import xla_client

    api = xla_client.load_pjrt_plugin_dynamically("cuda", str(plugins / LIBRARIES["gpu"]))
    xla_client.initialize_pjrt_plugin("cuda")
    here = min(devices, GPUS_PER_HOST)
    topology = f"1x{devices // here}x{here}"  # slices, hosts of a slice, devices of a host
    description = xla_client.make_c_api_device_topology(
        api, "h100", target_config=H100, topology=topology
    )
    return list(description._make_compile_only_devices())


def _tpus(plugins: Path, devices: int) -> list[Any]:
    os.environ.update(
        TPU_LIBRARY_PATH=str(plugins / LIBRARIES["tpu"]),
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5p-16",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
    )
    from jax.experimental import topologies

    name = f"v5p:{TPU_TOPOLOGIES[devices]}"
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)


# adding up and printing --------------------------------------------------------------------------


def _column(program: Program) -> Column:
    traffic: Traffic = {}
    ring = 0.0
    for row in map(program.row, range(len(program))):
        times = int(program.trips[row.number])
        if row.kind not in (Kind.COLLECTIVE, Kind.SEND) or not times:
            continue
        where = row.group if row.group is not None else row.route
        assert where is not None
        kind = row.collective.name.lower() if row.kind is Kind.COLLECTIVE else "send"
        axes = ",".join(dict.fromkeys(str(a) for a in where.axes)) or str(where)
        entry = traffic.setdefault((kind, axes), [0, 0])
        entry[0] += times
        entry[1] += times * row.comm_bytes
        size = row.group.size(program.mesh) if row.group is not None else 0
        ring += times * row.comm_bytes * _ring_factor(row.collective, size)
    return Column(traffic, ring)


def _ring_factor(kind: Collective, n: int) -> float:
    """Bytes that a rank sends for each byte of its input when a ring does the collective."""
    if kind is Collective.ALL_REDUCE:
        return 2 * (n - 1) / n
    if kind is Collective.ALL_GATHER:
        return float(n - 1)
    if kind in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (n - 1) / n
    return 1.0


def _section(case: Case | Small, columns: dict[str, Column | str]) -> str:
    lines = [f"### {case.name}", "", case.origin, ""]
    lines += [f"{name}: failed, {c}\n" for name, c in columns.items() if isinstance(c, str)]
    good = {name: c for name, c in columns.items() if isinstance(c, Column)}
    lines.append("| kind and axes | " + " | ".join(good) + " |")
    lines.append("|---|" + "---:|" * len(good))
    for key in sorted({k for c in good.values() for k in c.traffic}):
        cells = [_cell(c.traffic.get(key)) for c in good.values()]
        lines.append(f"| {key[0]} {key[1]} | " + " | ".join(cells) + " |")
    rings = [f"{c.ring_bytes / 1e6:,.2f}" for c in good.values()]
    lines.append("| **ring, MB** | " + " | ".join(rings) + " |")
    return "\n".join([*lines, ""])


def _cell(entry: list[int] | None) -> str:
    return f"{entry[0]}: {entry[1] / 1e6:,.3f}" if entry else "-"


if __name__ == "__main__":
    main()
