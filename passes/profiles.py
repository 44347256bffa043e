"""Target profiles: which rewrites a compiler does to a partitioned program, and its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flint.errors import FlintError, nearest
from flint.passes.base import Pass
from flint.passes.pass_list import parse_passes


@dataclass(frozen=True)
class KernelTarget:
    """A named, fixed list of passes, applied in order, and those that make kernels after them.

    Both are written as `flint opt --passes` takes them.
    """

    name: str
    summary: str
    rewriting: str = ""
    fusing: str = "fuse-kernels"

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """What the compiler does to a partitioned program."""
        return parse_passes(self.rewriting)

    @cached_property
    def kernels(self) -> tuple[Pass, ...]:
        """What makes kernels, after `passes`."""
        return parse_passes(self.fusing)


_XLA = "drop-dead-code,reassociate,form-reduce-scatter"
#: Kernels of XLA for GPUs: docs/compiled-kernels.md holds them against its compiled programs.
_XLA_GPU = (
    "expand-ragged,sum-products,merge-products,turn-operands{batches=true filters=true},split-products,"
    "split-reductions,fuse-chains{sinks=false orders=true prologue=types},join-collectives,copy-carried"
)
#: What it does to collectives: docs/compilers.md.
_XLA_GPU_COLLECTIVES = (
    "drop-dead-code,fold-all-reduces,reassociate,sum-after-loops,form-reduce-scatter,"
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
            'expand-ragged{rows=false},read-slices,fuse-chains{blocks="" prologue=any epilogue=any},'
            "fuse-tpu-products,write-slices",
        ),
        KernelTarget(
            "xla-cpu",
            "XLA for CPUs: its kernels, their order, and copies of operands of products",
            "drop-dead-code,sum-whole",
            "open-single-trips,sink-fills,turn-operands,fuse-xla-cpu,drop-dead-code,"
            "breadth-first{together=true}",
        ),
        KernelTarget(
            "inductor",
            "torch.compile: dead code; one kernel for each chain, softmax, norm and attention",
            "drop-dead-code",
            "fuse-attention{named=true},fuse-chains{blocks=shared "
            'epilogue="" siblings=any operators=true slices=true named=true}',
        ),
        KernelTarget(
            "megatron",
            "Megatron-LM: kernels that the program names; each layer has its own arrays",
            _XLA,
            "separate-layers,use-blas,"
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
