"""Replay of the recorded steps in data/kineto: the span that the estimate gives beside the measured one.

    python -m benchmarks.replay

prints the table of docs/measured.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from flint.backends.cost.replay.changes import on_device
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.formats import read_profiles
from flint.tracing import Trace

DATA = Path(__file__).parent / "data" / "kineto"
_HEADINGS = (
    *("file", "device", "measured ms", "replayed ms", "error", "kernels alone ms"),
    *("compute", "wire", "waiting", "launch", "unknown"),
)


@dataclass(frozen=True)
class Replay:
    """One file: spans in ns, `kernels_ns` the sum of its kernels, shares of the span by where it belongs."""

    name: str
    device: str
    measured_ns: float
    replayed_ns: float
    kernels_ns: float
    shares: tuple[float, ...]

    @property
    def error(self) -> float:
        """Of the replayed span."""
        return self.replayed_ns / self.measured_ns - 1


def replay(path: Path) -> Replay:
    """Import a file and estimate it on its own device."""
    workload = workload_of(read_profiles(path))
    found = Trace(workload).estimate()
    assert found.measured is not None
    assert found.measured.by is not None
    facts = found.measured.classes[0]
    a = facts.attribution
    program = workload.programs[0]
    parts = (a.compute_ns, a.wire_ns, a.waiting_ns, a.launch_ns, a.unknown_ns)
    return Replay(
        path.name.removesuffix(".json.gz"),
        found.measured.by.device,
        facts.measured_ns,
        facts.estimated_ns,
        float(np.sum(program.measured_ns[on_device(program)])),
        tuple(p / a.span_ns for p in parts),
    )


def replays() -> Iterator[Replay]:
    """All files, by name."""
    return map(replay, sorted(DATA.glob("*.json.gz")))


def table(found: list[Replay]) -> str:
    """As it stands in the docs."""
    return markdown(_HEADINGS, [cells(r) for r in found])


def cells(r: Replay) -> tuple[str, ...]:
    """A row of the table."""
    return (
        r.name,
        r.device,
        f"{r.measured_ns / 1e6:.3f}",
        f"{r.replayed_ns / 1e6:.3f}",
        f"{100 * abs(r.error):.2f} %",
        f"{r.kernels_ns / 1e6:.3f}",
        *(f"{100 * s:.1f} %" for s in r.shares),
    )


if __name__ == "__main__":
    print(table(list(replays())))
