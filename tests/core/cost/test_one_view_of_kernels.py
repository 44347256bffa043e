"""Traces, estimates and memory see the same kernels, for every profile."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from flint.backends.chakra import read
from flint.backends.chakra.schema import NodeType
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.program import Kind
from flint.passes.profiles import PROFILES, kernels_for
from flint.tracing import Trace, trace_step
from tests.long import long_but

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PROGRAMS = {
    "mixtral_jax.py": ("2x4", {"num_layers": "2", "seq": "256"}),
    "decode_jax.py": ("2x4", {"model": "8b", "num_layers": "2", "tokens": "2"}),
}


@cache
def captured(name: str) -> Trace:
    mesh, options = PROGRAMS[name]
    target = Target.parse(str(EXAMPLES / name))
    with importable(target.path.parent):
        loaded = load_step(target, mesh, settings=options)
        return trace_step(loaded.step, loaded.mesh, name=loaded.name)


#: Every profile with experts; with a cache that is written, one for each kind of chip.
QUICK = [("mixtral_jax.py", p) for p in PROFILES]
QUICK += [("decode_jax.py", p) for p in ("inductor", "xla-tpu")]


@pytest.mark.parametrize(("name", "profile"), long_but(QUICK, product(PROGRAMS, PROFILES)))
def test_traces_hold_the_kernels_that_are_estimated(
    name: str, profile: str, tmp_path: Path
) -> None:
    trace = captured(name).rewritten(profile)
    (kernels,) = kernels_for(trace.workload, profile).programs
    rows = np.flatnonzero(kernels.kind == Kind.COMPUTE)
    expected: Counter[int] = Counter()
    for row in rows.tolist():
        expected[max(int(kernels.flops[row]), 1)] += int(kernels.trips[row])
    trace.save(tmp_path / "out", ranks="0")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    written = Counter(n.attributes["num_ops"][1] for n in nodes if n.type == NodeType.COMP)
    assert +written == +expected
    found = trace.estimate("v5p" if "tpu" in profile else "h100-dgx", profile=profile)
    (track,) = found.timeline.classes
    estimated = track.work.program  # whose collectives the stack's policy may have joined
    computes = estimated.kind == Kind.COMPUTE
    assert estimated.flops[computes].tolist() == kernels.flops[rows].tolist()
    assert found.classes[0].memory.peak_bytes > 0


def test_a_profile_changes_what_traces_hold(tmp_path: Path) -> None:
    """The kernels of `none` were written for every profile once."""
    counts = {}
    for profile in ("none", "inductor", "xla-gpu"):
        report = captured("mixtral_jax.py").rewritten(profile)
        report.save(tmp_path / profile, ranks="0")
        counts[profile] = len(read(tmp_path / profile / "trace.0.et").nodes)
    assert len(set(counts.values())) == 3
