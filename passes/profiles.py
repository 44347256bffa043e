"""Target profiles: which rewrites a compiler does to a partitioned program, and its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from flint.errors import FlintError, nearest
from flint.ir.op_class import OpClass
from flint.ir.workload import Workload
from flint.passes.base import Pass
from flint.passes.pass_list import parse_passes

if TYPE_CHECKING:
    from flint.ir.program import Program
    from flint.passes.base import Pass


#: Convolutions that pad, cut and turn by themselves.
_PLAIN = "library-convolutions{kernels=false}"


@dataclass(frozen=True)
class KernelTarget:
    """A named, fixed list of passes, applied in order, and those that make kernels after them.

    Both are written as `flint opt --passes` takes them.
    """

    name: str
    summary: str
    rewriting: str = ""
    fusing: str = f"{_PLAIN},fuse-kernels"

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """What the compiler does to a partitioned program."""
        return parse_passes(self.rewriting)

    @cached_property
    def kernels(self) -> tuple[Pass, ...]:
        """What makes kernels, after `passes`."""
        return parse_passes(self.fusing)


_XLA = "drop-dead-code,reassociate,form-reduce-scatter"
#: Kernels of XLA for GPUs: docs/compiled.md holds them against its compiled programs.
_XLA_GPU = (
    "expand-ragged,sort-top-k,sum-products,turn-results,merge-products,library-convolutions,turn-operands,split-products,"
    "split-reductions,fuse-convolutions,fuse-chains{sinks=false orders=true prologue=again slices=true},join-collectives,"
    "copy-carried,copy-overwritten"
)
#: What it does to collectives: docs/compilers.md.
_XLA_GPU_COLLECTIVES = (
    "fold-gathers,drop-dead-code,fold-all-reduces,reassociate,sum-after-loops,form-reduce-scatter,"
    "narrow-collectives"
)

#: Profiles by name. XLA for both sums before it reduces (tested on tensor-parallel gradients), and
#: turns a sliced all-reduce into a reduce-scatter, for TPUs not everywhere. docs/kernels.md says
#: which kernels each makes, and how that was checked.
PROFILES: dict[str, KernelTarget] = {
    p.name: p
    for p in (
        KernelTarget("none", "the program as partitioned"),
        KernelTarget(
            "xla-gpu",
            "XLA for GPUs: dead code, all-reduce of sums, reduce-scatter, narrower moves",
            _XLA_GPU_COLLECTIVES,
            _XLA_GPU,
        ),
        KernelTarget(
            "xla-gpu+flash",
            "XLA for GPUs; attention that the program writes out runs as cuDNN's flash attention",
            _XLA_GPU_COLLECTIVES,
            f"fuse-attention,{_XLA_GPU}",
        ),
        KernelTarget(
            "xla-tpu",
            "XLA for TPUs: dead code, all-reduce of sums, reduce-scatter",
            _XLA,
            f"{_PLAIN},"
            'expand-ragged{rows=false},select-scatters,read-slices,fuse-chains{blocks="" prologue=any '
            "epilogue=any siblings=any parts=false},"
            "fuse-tpu-products,write-slices,copy-overwritten",
        ),
        KernelTarget(
            "inductor",
            "torch.compile: dead code; one kernel for each chain, softmax, norm and attention",
            "drop-dead-code",
            f"{_PLAIN},"
            "fuse-attention{named=true},fuse-chains{blocks=shared "
            'epilogue="" siblings=any operators=true slices=true named=true}',
        ),
        KernelTarget(
            "megatron",
            "Megatron-LM: kernels that the program names; each layer has its own arrays",
            _XLA,
            f"{_PLAIN},separate-layers,use-blas,"
            'fuse-chains{blocks=shared epilogue="" siblings="" slices=true named=true}',
        ),
        KernelTarget("eager", "PyTorch without a compiler: each operator is a kernel", fusing=""),
        KernelTarget(
            "torch",
            "PyTorch as the program configured it: compiled calls as inductor, others eager",
            fusing="fuse-attention{named=true compiled=true},fuse-chains{blocks=shared "
            'epilogue="" siblings=any operators=true slices=true named=true compiled=true}',
        ),
    )
}


def profile(name: object) -> KernelTarget:
    """The profile called `name`. Raises FlintError FL405 for anything else."""
    if not isinstance(name, str) or name not in PROFILES:
        raise FlintError(
            "FL405",
            f"unknown target profile {name!r}{nearest(str(name), list(PROFILES))}",
            help="the profiles are " + ", ".join(PROFILES),
        )
    return PROFILES[name]


# Passes over a whole workload: what a compiler does after partitioning, and kernels.

#: What one node of a trace may be.
GRANULARITIES = ("op", "kernel")
#: The profile of what is made of profiles: its kernels are those that ran.
RECORDED = "recorded"


def rewrite(workload: Workload, *, profile: str = "none", granularity: str = "op") -> Workload:
    """Apply the passes of a target profile to every program, then merge rows into its kernels.

    What was done is noted in the metadata. What a whole compiler made has its kernels already, and so
    has what is made of profiles (profile "recorded"): it stays as it is. Raises FlintError FL405 for an unknown profile, FL406
    for an unknown granularity.
    """
    from flint.passes.base import run_passes
    from flint.passes.profiles import profile as find_profile

    if granularity not in GRANULARITIES:
        raise FlintError(
            "FL406",
            f"unknown granularity '{granularity}'{nearest(granularity, GRANULARITIES)}",
            help=f"choose one of {', '.join(GRANULARITIES)}",
        )
    passes: list[Pass] = []
    if workload.measured_by:
        profile = RECORDED
    else:
        target = find_profile(profile)
        passes = [*target.passes, *(target.kernels if granularity == "kernel" else ())]
    if workload.compiled_by:
        passes = []
    chosen = {"granularity": granularity}
    if profile != "none":
        chosen["profile"] = profile
    return replace(
        workload,
        programs=tuple(run_passes(_held(p), passes) if passes else p for p in workload.programs),
        metadata={**workload.metadata, **chosen},
    )


def _held(program: Program) -> Program:
    """The program without rows that let go of memory: kernels are not made around them."""
    freed = program.op == OpClass.FREED
    if not freed.any():
        return program
    from flint.ir.edit import kept

    return kept(program, ~freed)


def kernels_for(workload: Workload, profile: str) -> Workload:
    """The kernels of a profile: `rewrite` by "kernel", kept until another profile is asked for."""
    return workload.kept.get(
        "kernels", profile, lambda: rewrite(workload, profile=profile, granularity="kernel")
    )


def nodes_of(workload: Workload, granularity: str) -> Workload:
    """What the nodes of a trace are: operations, or the kernels of the workload's own profile.

    The kernels are those that estimates, memory and timelines use. Raises FlintError FL406 for an
    unknown granularity.
    """
    if granularity != "kernel":
        return rewrite(workload, granularity=granularity)
    return kernels_for(workload, str(workload.metadata.get("profile", "none")))
