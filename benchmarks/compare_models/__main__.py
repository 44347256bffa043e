"""The table of docs/measured.md: `python -m benchmarks.compare_models`."""

from __future__ import annotations

from pathlib import Path

from flint.backends.cost.replay.plan import recorded_cluster
from flint.cluster.models import Cluster
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.text import Column, format_duration, text_table
from flint.tools.measure.comparison.comparison import compare_measured
from flint.tools.measure.comparison.result import MeasuredComparison
from flint.tools.measure.comparison.units import ExecutedCall
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.formats import read_profiles

HERE = Path(__file__).resolve().parent
PROFILES = HERE.parent / "data" / "kineto"
#: Captures and the profiles of the same model.
PAIRS = {
    "bert-small": ("h100_bert-small", "mi300x_bert-small"),
    "qwen1.5-0.5b": ("h100_qwen1.5-0.5b", "mi300x_qwen1.5-0.5b"),
    "vit": ("h100_vit",),
    "resnet-18": ("mi300x_resnet_train_rank0of8",),
}
_COLUMNS = (
    Column("profile"),
    *(
        Column(title, right=True)
        for title in (
            "calls", "captured", "matched by time", "by calls", "FLOPs", "kernels measured",
            "estimated", "", "datasheet alone", "", "launch", "unknown",
        )
    ),
)  # fmt: skip


def compared(model: str, profile: str) -> tuple[MeasuredComparison, Cluster]:
    """A capture beside a profile, on the cluster of the profile's device."""
    measured = workload_of(read_profiles(PROFILES / f"{profile}.json.gz"))
    assert measured.measured_by is not None
    cluster = recorded_cluster(measured.measured_by)
    captured = Workload.load(HERE / f"{model}.flint")
    return compare_measured(measured, captured, EstimateRequest(cluster)), cluster


def datasheet_ns(unit: ExecutedCall, cluster: Cluster) -> float:
    """What peak FLOPS and bandwidth alone say: the trivial model."""
    chip = cluster.chip
    peak = chip.peak_flops_per_s["bf16"]
    return 1e9 * max(unit.flops / peak.value, unit.bytes / chip.memory_bandwidth_bytes_per_s.value)


def main() -> None:
    rows = []
    for model, profiles in PAIRS.items():
        for profile in profiles:
            found, cluster = compared(model, profile)
            rows.append(_row(profile, found, cluster))
    print(text_table(_COLUMNS, rows))


def _row(profile: str, found: MeasuredComparison, cluster: Cluster) -> tuple[str, ...]:
    mine, theirs = found.units
    # of calls that both have: what a version of a library adds is no error of the model
    pairs = [(i, j) for i, j in found.pairing.pairs if not mine[i].communicates]
    kernels = sum(mine[i].time_ns for i, _ in pairs)
    estimated = sum(theirs[j].time_ns for _, j in pairs)
    trivial = sum(datasheet_ns(theirs[j], cluster) for _, j in pairs)
    flops = sum(u.flops for u in mine), sum(u.flops for u in theirs)
    span = found.parts[0].span_ns
    return (
        profile,
        str(len(mine)),
        str(len(theirs)),
        f"{found.matched_time:.1%}",
        f"{found.matched_calls:.1%}",
        f"{flops[1] / flops[0] - 1:+.2%}",
        format_duration(kernels),
        format_duration(estimated),
        f"{estimated / kernels - 1:+.0%}",
        format_duration(trivial),
        f"{trivial / kernels - 1:+.0%}",
        f"{found.parts[0].launch_ns / span:.1%}",
        f"{found.parts[0].unknown_ns / span:.1%}",
    )


if __name__ == "__main__":
    main()
