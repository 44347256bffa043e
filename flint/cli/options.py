"""Options that commands share, and those of `flint capture`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flint.cli.paths import READS, Writes


def cluster_candidates() -> list[str]:
    """What a shell offers for --cluster: presets; it offers files itself."""
    from flint.cluster.load import preset_names

    return list(preset_names())


def profile_candidates() -> list[str]:
    """What a shell offers for --profile."""
    from flint.passes.profiles import PROFILES

    return list(PROFILES)


def stack_candidates() -> list[str]:
    """What a shell offers for --stack."""
    from flint.cluster.stack import Stack

    return Stack.names()


def schedule_candidates() -> list[str]:
    """What a shell offers for --schedule."""
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    return list(SCHEDULES)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress.")
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Print more: stages, tracebacks of user code, the log on stderr (-vv: all of it).",
    ),
]
Rank = Annotated[
    int, typer.Option("--rank", metavar="N", help="Look at the program that this rank runs.")
]


class Unpriced(StrEnum):
    """What becomes of operations without a price."""

    ZERO = "zero"


UnpricedChoice = Annotated[
    Unpriced | None,
    typer.Option(
        "--unpriced", help="Count operations without a price as nothing: times are lower bounds."
    ),
]
Mapping = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="AXIS=TIER,...",
        help="Network tiers of mesh axes, model=nvlink,data=ib (default: the last axis in the inner "
        "tier; flint clusters show NAME has their names).",
    ),
]


class Partitioner(StrEnum):
    """Who splits the program over devices."""

    SHARDY = "shardy"
    XLA = "xla"


class Compiler(StrEnum):
    """Which whole compiler makes the program of a device, in the place of a partitioner."""

    XLA_GPU = "xla-gpu"
    XLA_TPU = "xla-tpu"
    XLA_TPU_CYCLES = "xla-tpu-cycles"


class Granularity(StrEnum):
    """What one node of a trace is."""

    OP = "op"
    KERNEL = "kernel"


class TensorSize(StrEnum):
    """What `tensor_size` of a node counts."""

    TOTAL = "total"
    OUTPUT = "output"


class GroupForm(StrEnum):
    """How a node says who takes part in its collective."""

    NAMES = "names"
    DIMS = "dims"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[:NAME]",
        help="A model file (.py), StableHLO (.mlir, .mlirbc) or XLA HLO (.hlo, .txt, .pb).",
    ),
    READS,
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGS]", help="Arguments of a script (with --world)."),
]
World = Annotated[
    bool,
    typer.Option(
        "--world",
        help="Run MODEL as a script, on devices that are not there and tensors without data: JAX, or "
        "PyTorch as torchrun would.",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="N",
        min=0,
        help="Optimizer step of the script to record, of JAX the call of its step (default 2: after "
        "a warm-up; 0: the whole script, for inference with PyTorch).",
        show_default=False,
    ),
]
StepName = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="NAME[:N]",
        help="Jitted function of a JAX script to capture, at its N-th call (default: the heaviest "
        "function that is called twice, at its second call).",
        show_default=False,
    ),
]
ChipName = Annotated[
    str | None,
    typer.Option(
        "--chip",
        metavar="NAME",
        autocompletion=cluster_candidates,
        help="Chip that a script finds, or that --compiler compiles for: its name, or a cluster's name "
        "or file (default: the first --cluster; else h100, or v5p for xla-tpu).",
        show_default=False,
    ),
    READS,
]
Hints = Annotated[
    list[str] | None,
    typer.Option(
        "--hint",
        metavar="WHERE=VALUE",
        help="Value that depends on data, by FILE.py:LINE or module path (repeatable).",
    ),
]
MeshText = Annotated[
    str | None,
    typer.Option(
        "--mesh", "-m", metavar="MESH", help="64x8, or data=64,model=8 (dumps may hold their own)."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write traces here (else: summary only)."),
    Writes(or_traces=True),
]
Arguments = Annotated[
    str | None,
    typer.Option(
        "--args", metavar="FILE.py:NAME", help="Arguments for a function that is not an entry."
    ),
    READS,
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Option of the entry (repeatable)."),
]
PartitionerChoice = Annotated[
    Partitioner, typer.Option("--partitioner", help="Who splits the program over devices.")
]
CompilerChoice = Annotated[
    Compiler | None,
    typer.Option(
        "--compiler",
        help="Let XLA's whole compiler for --chip make the program of a device: kernels, layouts and "
        "memory are its own (xla-tpu-cycles: its estimates of cycles, too, which take minutes). No such "
        "chip is needed, its plugin is: flint-ir[xla-gpu], flint-ir[xla-tpu].",
    ),
]
TripCounts = Annotated[
    list[str] | None,
    typer.Option(
        "--trip-count", metavar="NAME=N", help="Trip count of a loop without a bound (repeatable)."
    ),
]
GranularityChoice = Annotated[
    Granularity, typer.Option("--granularity", help="One node per operation or per kernel.")
]
ProfileName = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME",
        autocompletion=profile_candidates,
        help="Rewrite collectives as this compiler does, and make its kernels: {profiles}. With none, "
        "--cluster chooses kernels by chip and program.",
    ),
]
ClusterNames = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        autocompletion=cluster_candidates,
        help="Estimate the step on this cluster (repeatable); with -o, traces have the durations of "
        "kernels there.",
    ),
    READS,
]
Ranks = Annotated[
    str,
    typer.Option("--ranks", metavar="RANKS", help="Ranks to write: all, classes or 0,8-15."),
]
TensorSizeChoice = Annotated[
    TensorSize,
    typer.Option("--tensor-size", help="Bytes of operands and results, or of results."),
]
GroupsChoice = Annotated[
    GroupForm, typer.Option("--groups", help="Name communicator groups, or mark mesh dimensions.")
]
Link = Annotated[bool, typer.Option("--link", help="Hard-link ranks of equal bytes.")]

Cut = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS|SCOPES",
        help='Where stages of a pipeline begin: "layers:8,16,24", "layers" (even), '
        '"layers:balanced", or names of scopes or modules.',
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=schedule_candidates,
        help="Schedule of a pipeline: {schedules}.",
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Microbatches of a pipeline's step."),
]
Chunks = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Stages on each rank of a pipeline."),
]

CaptureNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME...]", help="Captures of flint.toml (default: all)."),
]
Jobs = Annotated[
    int,
    typer.Option("--jobs", "-j", metavar="N", min=0, help="Captures at a time (0: processors)."),
]
