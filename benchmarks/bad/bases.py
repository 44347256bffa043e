"""Good inputs of every kind, made once: what the bad ones are spoilt from.

python -m benchmarks.bad.bases DIR
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SMALL = ("--set", "num_layers=2", "--set", "seq=64")
#: Directories of traces: name and arguments of capture.
TRACES = {
    "plain": ("examples/llama_jax.py", *_SMALL, "--mesh", "2x2"),
    "pipeline": (
        *("examples/llama_jax.py:pipelined", *_SMALL, "--mesh", "pipe=2,data=2,model=1"),
        *("--schedule", "1f1b", "--microbatches", "2"),
    ),
    "timed": ("examples/llama_jax.py", *_SMALL, "--mesh", "2x1", "-c", "h100-dgx"),
}


def make_bases(folder: Path) -> None:
    """Write all good inputs into `folder`, in a process of its own: it loads compilers."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.bad.bases", str(folder)], check=True, cwd=ROOT
    )


def main(folder: Path) -> None:
    """Write traces, `.flint` files, modules and cluster files."""
    for name, arguments in TRACES.items():
        command = [sys.executable, "-m", "flint", "capture", *arguments, "-q", "-o", folder / name]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    _small(folder)
    _modules(folder)
    shutil.copy(ROOT / "tests/golden/hlo/scanned_block_gpu.txt", folder / "module.txt")
    _hlo_proto(folder)
    write_profiles(folder)
    _measured(folder)
    store(folder)


def write_profiles(folder: Path) -> None:
    """Profiles of Nsight Systems, XLA and PyTorch, and an execution trace."""
    from tests.execution_traces import linked, pair, write
    from tests.nsys_exports import small_export
    from tests.xplanes import gpu_planes, tpu_plane, xspace

    small_export().write(folder / "nsys.sqlite")
    (folder / "gpu.xplane.pb").write_bytes(xspace(*gpu_planes()))
    (folder / "tpu.xplane.pb").write_bytes(xspace(tpu_plane()))
    write(folder / "linked.json", linked())
    pair(folder)


def _measured(folder: Path) -> None:
    """A workload that was made of a profile, and Chakra's traces with times in both forms."""
    from google.protobuf.json_format import MessageToJson

    import flint
    from flint.backends.chakra.reading.reader import records
    from flint.backends.chakra.schema import messages

    flint.import_profiles(folder / "kineto.json").workload.save(folder / "measured.flint")
    data = (folder / "timed" / "trace.0.et").read_bytes()
    (folder / "timed.0.et").write_bytes(data)
    (start, stop), *spans = records(data, "base")
    texts = [MessageToJson(messages().GlobalMetadata.FromString(data[start:stop]), indent=None)]
    texts += [MessageToJson(messages().Node.FromString(data[a:b]), indent=None) for a, b in spans]
    (folder / "trace.0.et.json").write_text("\n".join(texts))


def store(folder: Path) -> None:
    """A study and a lock."""
    from flint.tools.change.project.lock import Lock
    from flint.tools.explore.study.run import open_study
    from tests.explore_points import result_at, space_of
    from tests.tools.change.test_compare import program, side

    space = space_of(Path("/nowhere"), range(1, 3))
    with open_study(folder / "study.db", space) as file:
        file.add(map(result_at, space.points()))
    Lock({"train": side(program("a", "b", gathers=1), "h100-dgx").snapshot}).save(
        folder / "flint.lock"
    )


def _small(folder: Path) -> None:
    """A workload with a row of every kind, loops, a branch, listed groups and two classes."""
    from flint.ir.rank_class import RankClass
    from flint.ir.workload import Workload
    from tests.properties.test_invariants import sample

    program = sample()
    classes = (RankClass("a", 0, {"x": (0, 1)}), RankClass("b", 1, ranks=(4, 5, 6, 7)))
    metadata = {"name": "sample", "source": "model.py", "warnings": ["none"]}
    Workload(program.mesh, (program, sample()), classes, metadata).save(folder / "small.flint")


def _modules(folder: Path) -> None:
    """A step with a loop, a named function, products and shardings, as StableHLO in four forms."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh = AbstractMesh((2, 2), ("data", "model"))

    def sharded(shape: tuple[int, ...], *spec: str | None) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    @jax.jit
    def block(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w) @ w.T

    def step(x: Any, stack: Any) -> Any:
        def loss(stack: Any) -> Any:
            return jax.lax.scan(lambda x, w: (block(x, w), None), x, stack)[0].sum()

        return jax.grad(loss)(stack)

    arguments = (sharded((8, 16), "data"), sharded((3, 16, 32), None, None, "model"))
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cuda",))
        exported = jax.export.export(jax.jit(step), platforms=["cuda"])(*arguments)
    operation = lowered.compiler_ir("stablehlo").operation
    out = io.BytesIO()
    operation.write_bytecode(out)
    (folder / "module.mlir").write_text(operation.get_asm(enable_debug_info=True))
    (folder / "module.mlirbc").write_bytes(out.getvalue())
    (folder / "module.bc").write_bytes(exported.mlir_module_serialized)


def _hlo_proto(folder: Path) -> None:
    from flint.passes.partition.xla import run_xla

    (folder / "module.pb").write_bytes(
        run_xla("parse-hlo", {}, (folder / "module.txt").read_bytes())
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
