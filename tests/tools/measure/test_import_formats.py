"""`flint import` of every format: traces that check, and a replay that lasts as long as the step did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flint
from flint.backends.chakra import check
from flint.cli import app
from flint.cluster.devices import preset_of_device
from flint.errors import FlintError
from tests.execution_traces import linked, pair, write
from tests.nsys_exports import small_export
from tests.xplanes import chrome, gpu_planes, tpu_plane, xspace

REAL = Path(__file__).parents[3] / "benchmarks/data/kineto"


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


FORMATS: dict[str, Callable[[Path], tuple[Path, ...]]] = {
    "a real xplane.pb": lambda d: (REAL / "mi300x_jax_conv.xplane.pb",),
    "a GPU's xplane.pb": lambda d: (_bytes(d / "g.xplane.pb", xspace(*gpu_planes())),),
    "a TPU's xplane.pb": lambda d: (_bytes(d / "t.xplane.pb", xspace(tpu_plane())),),
    "XLA's Chrome JSON": lambda d: (chrome(d / "t.trace.json.gz", tpu_plane()),),
    "Nsight Systems": lambda d: (small_export().write(d / "n.sqlite"),),
    "an execution trace and its profile": pair,
    "a linked execution trace": lambda d: (write(d / "linked.json", linked()),),
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_imported_checked_and_replayed(form: str, tmp_path: Path) -> None:
    files = FORMATS[form](tmp_path)
    done = CliRunner().invoke(app, ["import", *map(str, files), "-o", str(tmp_path / "out"), "-q"])
    assert done.exit_code == 0, done.output
    report = check(tmp_path / "out")
    assert report.ok, report.findings
    trace = flint.import_profiles(*files)
    trace.workload.verify()
    measured = trace.workload.measured_by
    assert measured is not None
    span_ns = max(c.span_ns for c in measured.classes)
    # on its own device; where Flint does not know that, nothing says that the named one is another
    cluster = preset_of_device(measured.device) or "h100-dgx"
    assert trace.estimate(cluster).step_time_ns == pytest.approx(span_ns, rel=1e-3)


def test_profiles_of_different_tools_are_not_ranks_of_one_job(tmp_path: Path) -> None:
    files = (small_export().write(tmp_path / "n.sqlite"), pair(tmp_path)[1])
    with pytest.raises(FlintError) as caught:
        flint.import_profiles(*files)
    assert caught.value.code == "FL813"


def test_what_jax_records_of_a_cpu_is_read_and_refused(tmp_path: Path) -> None:
    """The three files that jax.profiler really writes; a CPU is no device in them."""
    code = (
        "import jax, jax.numpy as jnp\n"
        "f = jax.jit(lambda x: jnp.tanh(x @ x).sum()); x = jnp.ones((16, 16)); f(x)\n"
        f"with jax.profiler.trace({str(tmp_path)!r}, create_perfetto_trace=True):\n"
        "    f(x).block_until_ready()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    files = [p for p in tmp_path.rglob("*") if p.suffix in (".pb", ".gz")]
    assert len(files) == 3
    for file in files:
        with pytest.raises(FlintError) as caught:
            flint.import_profiles(file)
        assert caught.value.code == "FL825"
        assert "/host:CPU" in str(caught.value)
