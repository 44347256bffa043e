"""Captured HuggingFace models with the measured times of real profiles, on the same and on other devices.

    python -m benchmarks.predict_models

takes the models of `compare_models`, which were captured with the shapes that the traces of data/kineto
name, and estimates each with the times of its own profile, and with those of another device. Prints the
table of docs/measured.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import flint
from benchmarks.replay import DATA
from benchmarks.tables import markdown
from flint.backends.cost.estimate import Estimate
from flint.ir.workload import Workload

MODELS = Path(__file__).parent / "compare_models"
PRESETS = {"h100": "h100-dgx", "mi300x": "mi300x"}
#: Profiles of one model: the times of the first, on the device of the second.
CASES = (
    ("h100_bert-small", "h100_bert-small"), ("h100_vit", "h100_vit"),
    ("h100_qwen1.5-0.5b", "h100_qwen1.5-0.5b"), ("mi300x_bert-small", "mi300x_bert-small"),
    ("mi300x_qwen1.5-0.5b", "mi300x_qwen1.5-0.5b"), ("h100_bert-small", "mi300x_bert-small"),
    ("h100_qwen1.5-0.5b", "mi300x_qwen1.5-0.5b"), ("mi300x_bert-small", "h100_bert-small"),
    ("mi300x_qwen1.5-0.5b", "h100_qwen1.5-0.5b"),
)  # fmt: skip
_HEADINGS = (
    *("model", "times of", "on", "measured ms", "estimate ms", "error", "error of kernels"),
    *("models alone", "as measured on the other"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Step times in ns, and kernel sums: measured on the device that is predicted, and estimated.

    `model_ns` is the step by models alone, `before_ns` what was measured on the device whose times
    are taken.
    """

    model: str
    source: str
    target: str
    truth_ns: float
    estimate_ns: float
    truth_kernels_ns: float
    kernels_ns: float
    model_ns: float
    before_ns: float


def outcomes() -> Iterator[Outcome]:
    """All cases."""
    names = {name for pair in CASES for name in pair}
    profiles = {name: flint.import_profiles(DATA / f"{name}.json.gz") for name in sorted(names)}
    replays = {name: trace.estimate() for name, trace in profiles.items()}
    for source, target in CASES:
        device, _, model = target.partition("_")
        captured = flint.Trace(Workload.load(MODELS / f"{model}.flint"))
        preset, truth = PRESETS[device], replays[target]
        found = captured.estimate(preset, measured=[profiles[source]], unpriced_is_zero=True)
        yield Outcome(
            model, source.partition("_")[0], device, truth.step_time_ns, found.step_time_ns,
            _kernels_ns(truth), _kernels_ns(found),
            captured.estimate(preset, unpriced_is_zero=True).step_time_ns,
            replays[source].step_time_ns,
        )  # fmt: skip


def _kernels_ns(e: Estimate) -> float:
    return sum(s.busy_ns for s in e.classes[0].shares if s.kind != "host")


def table(found: Iterator[Outcome]) -> str:
    """As it stands in the docs."""

    def off(ns: float, truth_ns: float) -> str:
        return f"{100 * (ns / truth_ns - 1):+.1f} %"

    return markdown(
        _HEADINGS,
        [
            (
                o.model,
                o.source,
                o.target,
                f"{o.truth_ns / 1e6:.2f}",
                f"{o.estimate_ns / 1e6:.2f}",
                off(o.estimate_ns, o.truth_ns),
                off(o.kernels_ns, o.truth_kernels_ns),
                off(o.model_ns, o.truth_ns),
                off(o.before_ns, o.truth_ns),
            )
            for o in found
        ],
    )


if __name__ == "__main__":
    print(table(outcomes()))
