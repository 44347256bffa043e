"""CaptureRequest: what is captured, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flint.requests.option import Form, OnlyFor, Request, option

if TYPE_CHECKING:
    from flint.steps.options import PipelineOptions


#: The fields that say how a program becomes that of one device: keywords of `flint.trace`.
LOWERED: Final = ("compiler", "chip", "trip_counts")


@dataclass(frozen=True)
class CaptureRequest(Request):
    """Options of a capture. Texts are as the command line takes them."""

    model: str = option(
        metavar="MODEL[:NAME]",
        key="model",
        required=True,
        reads=True,
        help="A model file (.py), StableHLO (.mlir, .mlirbc) or XLA HLO (.hlo, .txt, .pb).",
    )
    mesh: str | None = option(
        "--mesh",
        "-m",
        metavar="MESH",
        help="64x8, or data=64,model=8 (a dump may contain its own).",
    )
    world: bool = option(
        "--world",
        form=Form.SWITCH,
        help="Run MODEL as a script, on virtual devices and tensors without data: as JAX, or "
        "as torchrun would run PyTorch.",
    )
    args: str | None = option(
        "--args",
        metavar="FILE.py:NAME",
        reads=True,
        only_for=OnlyFor.MODELS,
        help="Arguments for a function that is not an entry.",
    )
    settings: Sequence[str] = option(
        "--set",
        form=Form.PAIRS,
        metavar="NAME=VALUE",
        only_for=OnlyFor.MODELS,
        help="Option of the entry (repeatable).",
    )
    chunks: int | None = option(
        "--chunks",
        form=Form.NUMBER,
        metavar="N",
        least=1,
        only_for=OnlyFor.MODELS,
        help="Stages per rank of a pipeline.",
    )
    cut: str | None = option(
        "--cut",
        metavar="LAYERS|SCOPES",
        only_for=OnlyFor.MODELS,
        help='Where pipeline stages begin: "layers:8,16,24", "layers" (even), '
        '"layers:balanced", or names of scopes or modules.',
    )
    microbatches: int | None = option(
        "--microbatches",
        form=Form.NUMBER,
        metavar="N",
        least=1,
        only_for=OnlyFor.MODELS,
        help="Microbatches per step of a pipeline.",
    )
    schedule: str | None = option(
        "--schedule",
        metavar="NAME",
        names="schedules",
        only_for=OnlyFor.MODELS,
        help="Pipeline schedule: {schedules}.",
    )
    trip_counts: Sequence[str] = option(
        "--trip-count",
        form=Form.PAIRS,
        metavar="NAME=N",
        key="trip_counts",
        least=1,
        help="Trip count of a loop without a bound (repeatable).",
    )
    hints: Sequence[str] = option(
        "--hint",
        form=Form.TEXTS,
        metavar="WHERE=VALUE",
        key="hints",
        only_for=OnlyFor.SCRIPTS,
        help="Answer for a value that depends on data, by FILE.py:LINE or module path (repeatable).",
    )
    compiler: str = option(
        "--compiler",
        default="",
        words=("", "xla-gpu", "xla-tpu", "xla-tpu-cycles"),
        help="Let XLA's whole compiler for --chip make the device program, with its own kernels, layouts and "
        "memory (xla-tpu-cycles: also its cycle estimates, which take minutes). You need the plugin "
        "flint-ir[xla-gpu], [xla-rocm] for AMD's, or [xla-tpu], but no such chip.",
    )
    cross_check: str = option(
        "--cross-check",
        default="",
        words=("", "xla-gpu", "xla-tpu", "auto"),
        help="Compile the step as --compiler does, too, and say where the capture differs and which to "
        "believe. auto: with the compiler of the chip if its plugin is there and the program small.",
    )
    profile: str = option(
        "--profile",
        default="none",
        metavar="NAME",
        names="profiles",
        help="Rewrite collectives as this compiler does, and make its kernels: {profiles}. "
        "With none, --cluster chooses kernels by chip and program.",
    )
    chip: str | None = option(
        "--chip",
        metavar="NAME",
        names="clusters",
        reads=True,
        only_for=OnlyFor.SCRIPTS,
        help="Chip that a script sees, or that --compiler compiles for: its name, or a "
        "cluster's name or file (default: the first --cluster; else h100, or v5p for "
        "xla-tpu).",
    )
    steps: int | None = option(
        "--steps",
        form=Form.NUMBER,
        metavar="N",
        least=0,
        only_for=OnlyFor.SCRIPTS,
        help="Optimizer step of the script to record; for JAX the call of its step (default 2: "
        "after a warm-up; 0: the whole script, for inference with PyTorch).",
    )
    step: str | None = option(
        "--step",
        metavar="NAME[:N]",
        only_for=OnlyFor.SCRIPTS,
        help="Jitted function of a JAX script to capture, at its N-th call (default: the heaviest "
        "function that is called twice, at its second call). Of PyTorch: prefill or decode, of what "
        "generates tokens.",
    )
    clusters: Sequence[str] = option(
        "--cluster",
        "-c",
        form=Form.TEXTS,
        metavar="NAME|FILE",
        key="clusters",
        names="clusters",
        reads=True,
        help="Estimate the step on this cluster (repeatable); with -o, traces get the kernel "
        "durations of that cluster.",
    )
    script_arguments: Sequence[str] = option(
        form=Form.TEXTS,
        metavar="[-- ARGS]",
        key="script_arguments",
        only_for=OnlyFor.SCRIPTS,
        help="Arguments of a script (with --world).",
    )

    @property
    def pipeline(self) -> PipelineOptions:
        """The options of a pipeline."""
        from flint.steps.options import PipelineOptions

        return PipelineOptions(self.cut, self.schedule, self.microbatches, self.chunks)
