"""Target profiles: which rewrites a compiler does to a partitioned program, and its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from flint.errors import FlintError, nearest
from flint.passes.base import Pass
from flint.passes.fusion.attention import FuseAttention
from flint.passes.fusion.blas import UseBlas
from flint.passes.fusion.chains import FuseChains
from flint.passes.fusion.kernels import FuseKernels
from flint.passes.fusion.tpu_products import FuseTpuProducts
from flint.passes.fusion.tpu_slices import ReadSlices, WriteSlices
from flint.passes.fusion.xla_cpu import FuseXlaCpu
from flint.passes.rewrites.breadth_first import BreadthFirst
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.passes.rewrites.reassociate import ReassociateAllReduce
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from flint.passes.rewrites.separate_layers import SeparateLayers
from flint.passes.rewrites.single_trips import OpenSingleTrips
from flint.passes.rewrites.sink_fills import SinkFills
from flint.passes.rewrites.turn_operands import TurnOperands
from flint.passes.rewrites.whole_sums import SumWhole


@dataclass(frozen=True)
class Profile:
    """A named, fixed list of passes, applied in order, and those that make kernels after them."""

    name: str
    summary: str
    passes: tuple[Pass, ...]
    kernels: tuple[Pass, ...] = (FuseKernels(),)


_XLA = (DropDeadCode(), ReassociateAllReduce(), FormReduceScatter())
_INDUCTOR = FuseChains(
    blocks="shared", epilogue="", siblings="any", operators=True, slices=True, named=True
)
_MEGATRON = FuseChains(blocks="shared", epilogue="", siblings="", slices=True, named=True)

#: Profiles by name. XLA for both sums before it reduces (tested on tensor-parallel gradients), and
#: turns a sliced all-reduce into a reduce-scatter, for TPUs not everywhere. docs/kernels.md says
#: which kernels each makes, and how that was checked.
PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile("none", "the program as partitioned", ()),
        Profile(
            "xla-gpu",
            "XLA for GPUs: dead code, all-reduce of sums, reduce-scatter",
            _XLA,
            (FuseChains(),),
        ),
        Profile(
            "xla-gpu+flash",
            "XLA for GPUs; attention that the program writes out runs as cuDNN's flash attention",
            _XLA,
            (FuseAttention(), FuseChains()),
        ),
        Profile(
            "xla-tpu",
            "XLA for TPUs: dead code, all-reduce of sums, reduce-scatter",
            _XLA,
            (
                ReadSlices(),
                FuseChains(blocks="", prologue="any", epilogue="any"),
                FuseTpuProducts(),
                WriteSlices(),
            ),
        ),
        Profile(
            "xla-cpu",
            "XLA for CPUs: its kernels, their order, and copies of operands of products",
            (DropDeadCode(), SumWhole()),
            (
                OpenSingleTrips(),
                SinkFills(),
                TurnOperands(),
                FuseXlaCpu(),
                DropDeadCode(),
                BreadthFirst(together=True),
            ),
        ),
        Profile(
            "inductor",
            "torch.compile: dead code; one kernel for each chain, softmax, norm and attention",
            (DropDeadCode(),),
            (FuseAttention(named=True), _INDUCTOR),
        ),
        Profile(
            "megatron",
            "Megatron-LM: kernels that the program names; layers have arrays of their own",
            _XLA,
            (SeparateLayers(), UseBlas(), _MEGATRON),
        ),
        Profile("eager", "PyTorch without a compiler: each operator is a kernel", (), ()),
    )
}


def profile(name: object) -> Profile:
    """The profile called `name`. Raises FlintError FL405 for anything else."""
    if not isinstance(name, str) or name not in PROFILES:
        raise FlintError(
            "FL405",
            f"unknown target profile {name!r}{nearest(str(name), list(PROFILES))}",
            help="the profiles are " + ", ".join(PROFILES),
        )
    return PROFILES[name]
