"""XLA's own simplification before it partitions: docs/decisions/0102-*.md.

XLA's compiler for GPUs simplifies a program before shardings propagate, by passes of which the one for
CPUs, which jaxlib has, runs the same in a pipeline of its own. So a program is compiled for one CPU with
every other pass left out, and the compilation stops as soon as the simplified module is there.
"""

from __future__ import annotations

from typing import Final

from flint.errors import FlintError
from flint.passes import jax_private
from flint.passes.hlo.module import message_class
from flint.passes.hlo.precision import ALGORITHM, algorithm_name

#: What XLA's compiler for CPUs does besides, in its order: pipelines, then passes of those that run.
_LEFT_OUT: Final = (
    *("async-collective", "pre-spmd-partitioner", "sharding-removal", "SubbytePacker pipeline"),
    *("hlo normalization", "dot-library-passes"),
    # before "simplification"
    *("batched_gather_scatter_normalizer", "result_caster", "dot_decomposer", "operand_upcaster"),
    *("rng-expander", "rng-bit-generator-expander", "dynamic-index-splitter", "map-inline"),
    *("conditional-to-select", "topk-decomposer", "comparison-expander", "cholesky_expander"),
    *("qr_expander", "eigh_expander", "triangular_solve_expander", "all_to_all_decomposer"),
    *("stochastic_convert_decomposer", "call-inliner", "batch-dot-simplification"),
    *("all-reduce-promotion", "convolution-group-converter", "batchnorm_expander"),
    *("logistic-expander", "dynamic-dimension-simplifier", "associative-scan-rewriter"),
    *("reduce-window-rewriter", "reduce-window-resizer", "scan_expander", "dynamic_padder"),
    *("convolution-canonicalization", "change-op-data-type"),
    *(f"float-normalization-{name}" for name in ("bf16", "s1", "u1", "s2", "u2", "s4", "u4")),
    *(f"float-normalization-f8{name}" for name in ("e5m2", "e4m3", "e4m3fn", "e3m4", "e8m0fnu")),
    *(f"float-normalization-f8{name}fnuz" for name in ("e5m2", "e4m3", "e4m3b11")),
    "float-normalization-f4e2m1fn",
    # in it: those for GPUs run later, or not at all
    *("gather_simplifier", "tree_reduction_rewriter", "while-loop-invariant-code-motion"),
    "while-loop-constant-sinking",  # this one makes fills in the loops that read them
    # after it
    *("select_and_scatter_expander", "scatter_expander", "scatter_simplifier", "gemv-rewriter"),
    *("post_scatter_expansion_simplification", "bitcast_dtypes_expander", "topk-rewriter"),
    *("transpose-folding", "cse", "cse_barrier_expander", "while-loop-trip-count-annotator"),
    *("flatten-call-graph", "layout-assignment", "shape-canonicalizer", "literal-canonicalizer"),
    *("after layout assignment", "reshape-decomposer", "fusion", "fusion-wrapper"),
    *("cpu-all-reduce-combiner", "simplification after layout assignment", "copy-insertion"),
    *("cpu-parallel-task-assigner", "optimize_input_output_buffer_alias"),
    *("small-while-loop-hoisting", "propagate-call-metadata"),
)
_NAME: Final = "flint-simplified"
#: What XLA raises where it does not take a module.
COMPILER_ERRORS: Final = (RuntimeError, ValueError, TypeError)


class _Done(Exception):
    """Ends the compilation."""


def simplified_by_xla(module: bytes, *, is_shardy: bool) -> bytes:
    """A StableHLO module as XLA's passes simplify it before shardings propagate.

    To be called in a process that may end. Raises FlintError FL402 with XLA's reason if it refuses the module.
    """
    found: list[bytes] = []

    def take(proto: bytes) -> None:
        found.append(proto)
        raise _Done

    before_scheduling = 0
    transforms = jax_private.xla_transforms()
    transforms.register_xla_transform(_NAME, before_scheduling, take)
    try:
        compile_for_cpus(module, 1, is_shardy=is_shardy, left_out=_LEFT_OUT)
    except COMPILER_ERRORS as error:
        if not found:
            raise refused(error) from error
    finally:
        transforms.clear_xla_transform(_NAME, before_scheduling)
    return jax_private.hlo_to_stablehlo(_for_stablehlo(found[0], is_shardy=is_shardy))


def compile_for_cpus(
    module: bytes, partitions: int, *, is_shardy: bool, left_out: tuple[str, ...] = ()
) -> None:
    """Compile a module for one CPU, which stands for all `partitions`: the device assignment is zeros.

    `left_out` are passes that do not run, and then nothing is dumped. Raises one of `COMPILER_ERRORS`.
    """
    import numpy as np

    xla = jax_private.xla_client()
    options = xla.CompileOptions()
    options.num_replicas, options.num_partitions = 1, partitions
    everywhere = np.zeros((1, partitions), dtype=np.int64)
    options.device_assignment = xla.DeviceAssignment.create(everywhere)
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = is_shardy
    if left_out:
        build.debug_options.xla_enable_dumping = False
        build.debug_options.xla_disable_hlo_passes = ",".join(left_out)
    client = xla.make_cpu_client()
    client.compile_and_load(module, xla.DeviceList(tuple(client.devices()[:1])), options)


def refused(reason: Exception | str) -> FlintError:
    """XLA's reason for not taking a module."""
    said = reason if isinstance(reason, str) else first_lines(reason)
    return FlintError(
        "FL402",
        f"XLA does not partition this program: {said}",
        help="change the operation that is named, or compute it in jax.shard_map",
    )


def first_lines(error: Exception) -> str:
    """The first two lines of what XLA says, cut to a length that is read."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400]


def _for_stablehlo(proto: bytes, *, is_shardy: bool) -> bytes:
    """Written so that the way to StableHLO and back loses nothing.

    The sharding of every function's results goes where it is in XLA's form: XLA takes a module that has one for
    GSPMD's.
    Algorithms of products become frontend attributes: `stablehlo.dot`, which plain products become, has none.
    This is not done to MLIR: operations of dialects that are not loaded (`mhlo.ragged_dot`) would lose their
    properties.
    """
    module = message_class("HloModule")()
    module.ParseFromString(proto)
    for computation in module.computations:
        for i in computation.instructions:
            if i.precision_config.algorithm:
                name = algorithm_name(i.precision_config.algorithm)
                i.frontend_attributes.map.add(key=ALGORITHM, value=name)
        if is_shardy:
            root = next(i for i in computation.instructions if i.id == computation.root_id)
            root.ClearField("sharding")
    return bytes(module.SerializeToString())
