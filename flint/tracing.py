"""`flint.trace`: from a program and a mesh to a Trace, in one call.

The file is not called trace.py: importing a module `flint.trace` would replace the function in the
package by the module.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from flint.errors import FlintError
from flint.io.fields import TRIP_COUNTS, check_value
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.log import stage
from flint.plugins import API, load
from flint.requests.capture import LOWERED, CaptureRequest
from flint.requests.estimate import OF_TRACES, EstimateRequest
from flint.requests.keywords import (
    check_keywords,
    keywords_of,
    refuse_unknown,
    taken_fields,
    takes_fields,
)
from flint.routes import (
    Asked,
    workload_of_file,
    workload_of_jax_script,
    workload_of_staged,
    workload_of_step,
    workload_of_torch_script,
)
from flint.steps.entry import AnyStep
from flint.steps.input_kind import InputKind, input_kind
from flint.steps.lowering import Lowering
from flint.steps.step import Step, TorchStep, WorldStep
from flint.steps.trip_counts import TripCounts

if TYPE_CHECKING:
    import flint
    from flint.backends.chakra import WriteReport
    from flint.backends.cost.estimate import Estimate
    from flint.backends.summary.cross_check import CrossCheck
    from flint.backends.summary.summary import Summary
    from flint.cluster.models import Cluster
    from flint.passes.pipeline.split.shared import SharedBodies

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Trace:
    """What a program does on every device of a mesh, and how long it took to find out.

    `timings` are wall seconds of this run, by stage; they are not part of the workload. `cross_check`
    is what was asked of a compiler beside it. `recorded` says why the model was taken for a script
    where nobody asked for it.
    """

    workload: Workload
    timings: Mapping[str, float] = field(default_factory=dict)
    cross_check: CrossCheck | None = None
    recorded: str = ""

    @property
    def mesh(self) -> Mesh:
        """The mesh of the workload."""
        return self.workload.mesh

    @property
    def program(self) -> Program:
        """The program, if all ranks run the same one. Raises FlintError FL503 otherwise."""
        if len(self.workload.programs) != 1:
            raise FlintError(
                "FL503",
                f"the workload has {len(self.workload.programs)} programs, one per rank class",
                help="use trace.workload.program_of(rank)",
            )
        return self.workload.programs[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what could not be captured as requested, and about made-up values."""
        return self.workload.warnings

    def summary(self, written: Workload | None = None) -> Summary:
        """Operations, FLOPs, parameters and communication per device.

        `written` is what `save` returned: then communication is as in the traces, after the
        rewrites of their profile.
        """
        from flint.backends.summary.summary import summarize

        return summarize(self.workload, written)

    def rewritten(self, profile: str) -> Trace:
        """The trace after the rewrites of a target profile ("xla-gpu", ...; FL405 if unknown)."""
        from flint.passes.profiles import rewrite

        with stage("rewrite", timings := dict(self.timings)):
            workload = rewrite(self.workload, profile=profile)
        return replace(self, workload=workload, timings=timings)

    def beside(self, found: CrossCheck) -> Trace:
        """The trace with a comparison with a compiler, and its warning."""
        if not found.warning:
            return replace(self, cross_check=found)
        warned = {**self.workload.metadata, "warnings": [*self.warnings, found.warning]}
        return replace(self, workload=replace(self.workload, metadata=warned), cross_check=found)

    @keywords_of(EstimateRequest)
    def estimate(self, request: EstimateRequest) -> Estimate:
        """How long the step takes on a cluster, as in `flint estimate`.

        Clusters, stacks, policies, routings and measured workloads may also be Flint objects, a
        mapping a dictionary: {"model": "nvlink"}. Raises what
        `flint.backends.cost.estimate.estimate` does.
        """
        from flint.backends.cost.estimate import estimate

        return estimate(self.workload, request)

    def diff(
        self, other: Trace, cluster: str | Path | Cluster | None = None, **options: Any
    ) -> flint.Difference:
        """What `other` does differently, and why; with times and memory on a `cluster`.

        It prints as `flint diff` does; `options` are those of `estimate`, whose errors it raises.
        """
        refuse_unknown("Trace.diff", EstimateRequest.options(), options)
        found: flint.Difference = load(API, "Trace.diff")(self, other, cluster, **options)
        return found

    def compare(
        self,
        captured: Trace,
        cluster: str | Path | Cluster | None = None,
        *,
        rank: int | None = None,
        **options: Any,
    ) -> flint.MeasuredComparison:
        """Where this measured step and a capture of the same program differ, as in `flint compare`.

        The capture is priced on `cluster`, None for that of the measured device; `options` are those of
        `estimate`. `rank` is the profiled rank that is looked at, None for the first. Raises FlintError FL840 if this was
        not measured or the other was, FL503 for a rank without a profile, and what `estimate` raises.
        """
        refuse_unknown("Trace.compare", EstimateRequest.options(), options)
        compare = load(API, "Trace.compare")
        found: flint.MeasuredComparison = compare(self, captured, cluster, rank=rank, **options)
        return found

    def save(
        self,
        directory: str | Path,
        *,
        granularity: str = "kernel",
        cluster: str | Path | Cluster | None = None,
        **options: Any,
    ) -> WriteReport:
        """Write Chakra execution traces with one node per "kernel" or per "op".

        Kernels are those of the profile that the trace was `rewritten` for. With a `cluster` (and
        `stack`, `mapping`, `unpriced_is_zero`, `slow` or `chip_map` as in `estimate`), kernels have the durations that they have
        there, and the simulator's files beside the traces describe it. What is made of profiles has its
        measured durations, and the host's rows (is_cpu_op). Other `options` are those of
        `flint.backends.chakra.write`. The `.flint` file beside the traces holds the workload as it is,
        whatever the traces. Raises FlintError FL406 for an unknown granularity, or one other than
        "kernel" with a cluster; what `estimate` raises; and what `write` raises, for the directory
        (FL501, FL502, FL505, FL506) before any work.
        """
        from flint.backends.chakra import write
        from flint.backends.chakra.writing.output import refuse_output
        from flint.backends.cost.simulate.layers import untimed_nodes

        request = EstimateRequest(cluster, **taken_fields(OF_TRACES, options))
        refuse_output(Path(directory))
        if cluster is None and not self.workload.measured_by:
            nodes, timing = untimed_nodes(self.workload, granularity, request.mapping), None
        else:
            from flint.backends.cost.trace_timing import timed_nodes

            nodes, timing = timed_nodes(self.workload, granularity, request)
        with stage("write"):
            report = write(nodes, Path(directory), keep=self.workload, timing=timing, **options)
        _log.info(
            "%d files of %d ranks in %s: %d bytes, %d of them not linked",
            *(report.files, report.ranks, directory, report.trace_bytes, report.disk_bytes),
        )
        return report

    def to_networkx(self) -> Any:
        """The program as a `networkx.DiGraph`, one node per row."""
        from flint.backends.summary.graph import to_networkx

        return to_networkx(self.program)

    def __repr__(self) -> str:
        rows = sum(len(p) for p in self.workload.programs)
        return f"<flint.Trace: {self.mesh.size} devices ({self.mesh}), {rows} operations>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


#: Fields of a request that are keywords of `trace`.
TRACED: Final = (*LOWERED, "cross_check")
#: Its other keywords.
_ARGNUMS: Final = ("donate_argnums", "static_argnums")
_OWN: Final = ("in_shardings", "out_shardings", "shardings", *_ARGNUMS, "platform")


@takes_fields(CaptureRequest, TRACED)
def trace(
    fn: Callable[..., Any] | AnyStep,
    mesh: object,
    *args: Any,
    in_shardings: Any = None,
    out_shardings: Any = None,
    shardings: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    platform: str = "cuda",
    **kwargs: Any,
) -> Trace:
    """Trace a step for a mesh that need not exist, without executing anything.

    `fn` is a JAX function (jitted in whatever way or not), what JAX has staged of one (`Traced`,
    `Lowered`, `Compiled` of `jax.stages`, `jax.export.Exported` or its bytes; then without
    arguments), a PyTorch module (its forward pass), or a step with
    everything in it: `Step`, `TorchStep`, `WorldStep`, `Pipeline`,
    `Disaggregated`. `mesh` is "64x8", {"data": 64, "model": 8}
    or a JAX mesh; without names, the axes take those of the mesh that the arguments are sharded on.

    For JAX, `args` and `kwargs` are pytrees of `jax.ShapeDtypeStruct` (of arrays, only shape and
    dtype are used), sharded by their own `NamedSharding` or by `in_shardings`. For a module they
    are tensors, and `shardings` maps globs over parameter and argument names to placements, see
    `TorchStep`. `platform` is what the program is lowered for. The names below are no arguments of
    `fn`; `trip_counts` is a mapping, and `cross_check` of the trace says what a cross-check found.

    Raises FlintError for what the user can mend; see docs/errors.md.
    """
    lowered = taken_fields(TRACED, kwargs)
    check_keywords(fn, lowered, kwargs, known=[*TRACED, *_OWN])
    of_jax: dict[str, Any] = {
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
    }
    if against := lowered.pop("cross_check", ""):
        more = {**of_jax, "shardings": shardings, "platform": platform, **kwargs}
        return _cross_checked(partial(trace, fn, mesh, *args, **more), against, lowered)
    given = {name: value is not None and value != () for name, value in of_jax.items()}
    own = {"arguments": bool(args), "shardings": bool(shardings), **given}
    own |= dict.fromkeys(kwargs, True)
    if isinstance(fn, AnyStep):
        _refuse(own, f"a flint.{type(fn).__name__}, which has its own")
        return trace_step(fn, Mesh.parse(mesh), **lowered)
    if _is_staged(fn):
        _refuse(own, "a program that is already staged, which has its own")
        asked = _asked(Mesh.parse(mesh), lowered, "trace", name="compiled")
        return Trace(workload_of_staged(fn, platform, asked), asked.timings)
    if _is_torch_module(fn):
        _refuse(given, "a PyTorch module, which takes shardings")
        module = TorchStep(fn, args, kwargs, shardings=dict(shardings or {}), platform=platform)
        return trace_step(module, Mesh.parse(mesh), **lowered)
    _refuse({"shardings": bool(shardings)}, "a JAX function, which takes in_shardings")
    step = Step(fn, args, kwargs, **of_jax, platform=platform)
    return trace_step(step, _jax_mesh(mesh, (args, kwargs, in_shardings)), **lowered)


def _cross_checked(
    captured_with: Callable[..., Trace], against: str, lowered: Mapping[str, Any]
) -> Trace:
    """The trace beside what a compiler makes of the step; `captured_with` takes `lowered` fields."""
    from flint.cross_checking import cross_checked

    def capture_by(compiler: str) -> Trace:
        return captured_with(**({**lowered, "compiler": compiler} if compiler else lowered))

    captured, found = cross_checked(capture_by, against, lowered.get("chip") or "")
    return captured.beside(found)


def _jax_mesh(mesh: object, arguments: object) -> Mesh:
    if not isinstance(mesh, str):
        return Mesh.parse(mesh)
    from flint.frontends.jax_step.meshes import axis_names_of

    return Mesh.parse(mesh, axis_names_of(arguments))


def _asked(mesh: object, lowered: Mapping[str, Any], function: str, **more: Any) -> Asked:
    refuse_unknown(function, LOWERED, lowered)
    request = CaptureRequest("", **lowered)
    counts = cast("Mapping[str, int]", request.trip_counts or {})
    check_value(counts, TRIP_COUNTS, "FL219", "trip_counts of flint.trace")
    lowering = Lowering(request.compiler, request.chip or "")
    return Asked(mesh, lowering, TripCounts(dict(counts)), **more)


def _is_torch_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_staged(fn: object) -> bool:
    """Whether `fn` is what `jax.stages` or `jax.export` hold, or bytes; jax stays unloaded."""
    if not isinstance(fn, bytes | bytearray) and "jax" not in sys.modules:
        return False
    from flint.frontends.jax_step.stages import is_staged

    return is_staged(fn)


def _refuse(given: Mapping[str, bool], why: str) -> None:
    """Raise FlintError FL219 for the first that is given although it would be without effect."""
    for name, is_given in given.items():
        if is_given:
            raise FlintError("FL219", f"{name} of flint.trace is given with {why}", help="omit it")


def trace_distributed(
    fn: Callable[..., Any] | WorldStep,
    mesh: object,
    *args: Any,
    hints: Mapping[str, Any] | None = None,
    steps: int = 2,
    **kwargs: Any,
) -> Trace:
    """Trace a distributed PyTorch program as the ranks of a mesh that is not there would run it.

    `fn(*args, **kwargs)` does what a torchrun script does (`init_process_group`,
    `init_device_mesh`, steps of training); it runs on fake tensors in processes of its own. `mesh`
    has as many devices as the program has ranks. `steps` and `hints` are those of `WorldStep`.

    Raises FlintError FL230 (the program raised), FL231 (it took no step), FL232 (its world is not
    the mesh), FL233 (a value depends on data) and others of docs/errors.md.
    """
    if isinstance(fn, WorldStep):
        _refuse(
            {"arguments": bool(args or kwargs), "hints": bool(hints), "steps": steps != 2},
            "a flint.WorldStep, which has its own",
        )
    else:
        fn = WorldStep(fn, args, kwargs, hints=dict(hints or {}), steps=steps)
    asked = Asked(mesh)
    return Trace(workload_of_step(fn, asked), asked.timings)


def trace_script(
    path: str | Path,
    mesh: object,
    argv: Sequence[str] = (),
    *,
    hints: Mapping[str, Any] | None = None,
    steps: int | None = None,
    step: str = "",
    per_host: int | None = None,
    **lowered: Any,
) -> Trace:
    """Trace a script, notebook or module, run as `python path *argv`, on the devices of a mesh that are not there.

    A PyTorch script is a torchrun script: see `trace_distributed` for `steps` and `hints`; `chip`
    names the cluster whose GPU it is told that it runs on ("h100" by default). Of a JAX
    script the jitted function called `step` is captured (without a name, the heaviest that is
    called so often) at its call `steps`, lowered for `chip`: a cluster's name or file. Without `steps`
    it is the second optimizer step, or call. `lowered` are the fields `LOWERED` of CaptureRequest.

    Raises FlintError FL218 for options of the other kind of script, and FL230 to FL239.
    """
    from flint.frontends.script_kind import ScriptKind, script_kind

    is_jax = script_kind(Path(path)) is ScriptKind.JAX
    chip = lowered.get("chip")
    asked = _asked(mesh, {**lowered, "chip": chip if is_jax else None}, "trace_script")
    options = {"hints": hints, "number": steps, "step": step, "chip": chip}
    if not is_jax:
        options["per_host"] = per_host
    route = workload_of_jax_script if is_jax else workload_of_torch_script
    return Trace(route(Path(path), argv, options, asked), asked.timings)


def trace_step(
    step: AnyStep,
    mesh: Mesh,
    *,
    name: str = "",
    source: str = "",
    shared: SharedBodies | None = None,
    **lowered: Any,
) -> Trace:
    """Trace a step of any kind. `name` is for one without a name, the rest as in `trace`.

    `trip_counts` add to those of a JAX step. `shared` keeps what several pipelines have in common.
    """
    asked = _asked(mesh, lowered, "trace_step", name=name, source=source, shared=shared)
    return Trace(workload_of_step(step, asked), asked.timings)


def trace_file(path: str | Path, mesh: object = None, **lowered: Any) -> Trace:
    """Trace a program in a file: StableHLO (text, bytecode, portable artifact) or XLA HLO.

    What the file is follows from its content. `mesh` and `lowered` are as in `trace`; a mesh of None is
    that of the file.
    Raises FlintError FL301 when it cannot be read, FL210 for other kinds of file, FL302 or FL303
    when it is not what it seems, FL101 (mesh), FL403 (a trip count that no loop takes).
    """
    path = Path(path)
    kind = input_kind(path)
    if kind is InputKind.PYTHON:
        raise FlintError(
            "FL210",
            f"{path.name} is a Python file, not a captured program",
            help="call flint.trace(fn, mesh, *args), or flint capture on the command line",
        )
    asked = _asked(None if mesh is None else Mesh.parse(mesh), lowered, "trace_file")
    return Trace(workload_of_file(path, kind, asked), asked.timings)
