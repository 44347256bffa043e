"""Prediction of configurations from the profiles of another one, against ground truth that was made up.

    python -m benchmarks.predict

captures examples/torch_llama.py (Llama 3 8B, two layers, FSDP2 over tensor and sequence parallelism) in
several configurations, runs each on a machine whose constants are not those of any preset
(`ground_truth`), writes the profiles of all ranks of one (`kineto_writer`), imports these, and estimates
the others with their times on the preset. Prints the table of docs/measured.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import flint
from benchmarks.ground_truth import Truth, machine, run
from benchmarks.kineto_writer import write
from benchmarks.tables import markdown
from flint.cluster.models import Cluster
from flint.tracing import trace_script

PRESET = "h100-dgx"
_HEADINGS = (
    *("profiles of", "step", "truth ms", "estimate ms", "error", "measured"),
    *("models alone", "as measured before"),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A step of torch_llama.py: data-parallel ranks by tensor-parallel ranks, and its options."""

    data: int
    model: int
    batch: int = 1
    seq: int = 8192
    size: str = "8b"
    layers: int = 2

    @property
    def name(self) -> str:
        """Short."""
        return f"DP {self.data} x TP {self.model}, batch {self.batch}"

    def capture(self) -> flint.Trace:
        """The captured step."""
        argv = {
            "--model": self.size, "--num-layers": self.layers, "--tp": self.model,
            "--batch": self.batch, "--seq": self.seq,
        }  # fmt: skip
        words = [str(w) for pair in argv.items() for w in pair]
        script = Path(__file__).parents[1] / "examples" / "torch_llama.py"
        return trace_script(script, f"{self.data}x{self.model}", words)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Step times in ns: the truth, the estimate with measured times, that of the models alone, and
    the truth of the step that was profiled. `measured` is the share of kernel time that was measured
    as it is."""

    profiled: str
    name: str
    truth_ns: float
    estimate_ns: float
    model_ns: float
    before_ns: float
    measured: float

    def error(self, ns: float) -> float:
        """As a share of the truth."""
        return ns / self.truth_ns - 1


#: What is profiled, and what is predicted from it.
CASES = (
    (
        Configuration(4, 8),
        (Configuration(8, 4), Configuration(16, 8), Configuration(4, 8, batch=2)),
    ),
    (Configuration(8, 4), (Configuration(4, 8), Configuration(64, 4))),
)


def profiles_of(truth: Truth, folder: Path) -> flint.Trace:
    """A truth written as the profiles of its ranks and read again."""
    return flint.import_profiles(*write(truth, folder))


def predictions(
    profiled: Configuration, others: tuple[Configuration, ...], on: Cluster
) -> Iterator[Prediction]:
    """The replay of what was profiled, then each other configuration."""
    truth = run(profiled.capture().workload, on)
    with tempfile.TemporaryDirectory() as folder:
        imported = profiles_of(truth, Path(folder))
    replay = imported.estimate(PRESET)
    yield Prediction(
        profiled.name, "the same, replayed", truth.step_ns, replay.step_time_ns,
        imported.estimate(PRESET, timing="model").step_time_ns, truth.step_ns, 1.0,
    )  # fmt: skip
    for seed, other in enumerate(others, 1):
        captured = other.capture()
        there = run(captured.workload, on, seed=seed)
        found = captured.estimate(PRESET, measured=[imported])
        assert found.measured is not None
        times = {r.basis: r.time_ns for r in found.measured.rests}
        yield Prediction(
            profiled.name, other.name, there.step_ns, found.step_time_ns,
            captured.estimate(PRESET).step_time_ns, truth.step_ns,
            times.get("measured", 0.0) / sum(times.values()),
        )  # fmt: skip


def table(found: list[Prediction]) -> str:
    """As it stands in the docs."""
    return markdown(
        _HEADINGS,
        [
            (
                p.profiled,
                p.name,
                f"{p.truth_ns / 1e6:.2f}",
                f"{p.estimate_ns / 1e6:.2f}",
                f"{100 * p.error(p.estimate_ns):+.1f} %",
                f"{100 * p.measured:.0f} %",
                f"{100 * p.error(p.model_ns):+.1f} %",
                f"{100 * p.error(p.before_ns):+.1f} %",
            )
            for p in found
        ],
    )


if __name__ == "__main__":
    print(
        table([p for profiled, others in CASES for p in predictions(profiled, others, machine())])
    )
