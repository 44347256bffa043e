"""Prediction of configurations from the profiles of another one, against ground truth that was made up.

    python -m benchmarks.predict

captures examples in several configurations, runs each on a machine whose constants are not those of
any preset (`ground_truth`), takes what one of them did for its profiles, and estimates the others with
these times on the preset. Of PyTorch's Llama the profiles are files that are written and imported
(`kineto_writer`); of JAX's programs, whose profiles nothing writes, they are made as a workload. Prints
the table of docs/measured.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import flint
from benchmarks.ground_truth import HOST_LAUNCH_NS, Truth, machine, measured, run
from benchmarks.kineto_writer import write
from benchmarks.tables import markdown
from flint.ir.workload import Workload
from flint.tools.change.project.captures import capture_once
from flint.tools.change.project.config import Capture

PRESET = "h100-dgx"
EXAMPLES = Path(__file__).parents[1] / "examples"
_HEADINGS = (
    *("program", "profiles of", "step", "truth ms", "estimate ms", "error", "measured"),
    *("models alone", "as measured before"),
)


@dataclass(frozen=True)
class Configuration:
    """A step by a short name, and how it is captured."""

    name: str
    capture: Capture

    def captured(self) -> flint.Trace:
        """The step."""
        made = capture_once(EXAMPLES, self.capture)
        return flint.Trace(Workload.from_bytes(made.workload, self.name))


@dataclass(frozen=True)
class Suite:
    """A program, what of it is profiled and what is predicted. With `files` profiles are Kineto's."""

    program: str
    profiled: Configuration
    others: tuple[Configuration, ...]
    files: bool
    host_launch_ns: float = HOST_LAUNCH_NS


def torch_llama(
    data: int, model: int, *, batch: int = 1, layers: int = 2, seq: int = 8192
) -> Configuration:
    """FSDP2 over tensor and sequence parallelism, Llama 3 8B with few layers, as a torchrun script."""
    options = {
        "--model": "8b", "--num-layers": layers, "--tp": model, "--batch": batch, "--seq": seq,
    }  # fmt: skip
    words = tuple(str(w) for pair in options.items() for w in pair)
    capture = Capture(
        model="torch_llama.py", mesh=f"{data}x{model}", world=True, script_arguments=words
    )
    return Configuration(f"DP {data} x TP {model}, batch {batch}", capture)


def jax_llama(data: int, model: int) -> Configuration:
    """FSDP and tensor parallelism, Llama 3 8B with four layers, by jit."""
    capture = Capture(model="llama_jax.py", mesh=f"{data}x{model}", set={"num_layers": 4})
    return Configuration(f"DP {data} x TP {model}", capture)


def jax_pipeline(pipe: int, data: int, model: int) -> Configuration:
    """GPT-3 with eight layers, 1F1B, eight microbatches."""
    mesh = f"pipe={pipe},data={data},model={model}"
    capture = Capture(model="gpt3_jax.py", mesh=mesh, set={"num_layers": 8}, microbatches=8)
    return Configuration(f"PP {pipe} x DP {data} x TP {model}", capture)


SUITES = (
    Suite(
        "Llama, PyTorch",
        torch_llama(4, 8),
        (torch_llama(8, 4), torch_llama(16, 8), torch_llama(4, 8, batch=2)),
        files=True,
    ),
    Suite("Llama, PyTorch", torch_llama(8, 4), (torch_llama(4, 8), torch_llama(64, 4)), files=True),
    Suite("Llama, JAX", jax_llama(4, 8), (jax_llama(8, 4), jax_llama(16, 8)), False, 0.0),
    Suite(
        "GPT-3, JAX",
        jax_pipeline(4, 1, 4),
        (jax_pipeline(2, 2, 4), jax_pipeline(8, 1, 4)),
        False,
        0.0,
    ),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Step times in ns: the truth, the estimate with measured times, that of the models alone, and
    the truth of the step that was profiled. `measured` is the share of kernel time that was measured
    as it is."""

    program: str
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


def profiles_of(truth: Truth, *, files: bool) -> flint.Trace:
    """A truth as profiles of its ranks, read again."""
    if not files:
        return flint.Trace(measured(truth))
    with tempfile.TemporaryDirectory() as folder:
        return flint.import_profiles(*write(truth, Path(folder)))


def predictions(suite: Suite) -> Iterator[Prediction]:
    """The replay of what was profiled, then each other configuration."""
    on = machine(PRESET, suite.host_launch_ns)
    profiled = suite.profiled
    captured = profiled.captured()
    truth = run(captured.workload, on)
    imported = profiles_of(truth, files=suite.files)
    yield Prediction(
        suite.program, profiled.name, "the same, replayed", truth.step_ns,
        imported.estimate(PRESET).step_time_ns, captured.estimate(PRESET).step_time_ns,
        truth.step_ns, 1.0,
    )  # fmt: skip
    for seed, other in enumerate(suite.others, 1):
        captured = other.captured()
        there = run(captured.workload, on, seed=seed)
        found = captured.estimate(PRESET, measured=[imported])
        assert found.measured is not None
        times = {r.basis: r.time_ns for r in found.measured.rests}
        yield Prediction(
            suite.program, profiled.name, other.name, there.step_ns, found.step_time_ns,
            captured.estimate(PRESET).step_time_ns, truth.step_ns,
            times.get("measured", 0.0) / sum(times.values()),
        )  # fmt: skip


def table(found: list[Prediction]) -> str:
    """As it stands in the docs."""
    return markdown(
        _HEADINGS,
        [
            (
                p.program,
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
    print(table([p for suite in SUITES for p in predictions(suite)]))
