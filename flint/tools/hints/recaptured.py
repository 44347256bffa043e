"""Changes of a model file's step that are captured again: options, meshes, shardings, checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.backends.cost.memory.memory import MemoryKind
from flint.capturing import captured_from
from flint.errors import FlintError
from flint.frontends.contained import contained
from flint.frontends.model_file import ModelFile, Target, importable
from flint.ir.op_class import LAYOUT, PRODUCT, OpClass
from flint.ir.program import Collective, Kind, Program
from flint.requests.capture import CaptureRequest
from flint.steps.choices import option_choices, spelled
from flint.steps.input_kind import InputKind, input_kind
from flint.steps.options import parse_settings
from flint.steps.step import Step
from flint.tools.hints.hint import CheckedBy, HintCandidate, HintKind, StepOutcome, estimated
from flint.tools.hints.on_graph import exposed_ns, unsharded_axes

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.mesh import Mesh
    from flint.steps.entry import AnyStep

#: What a capture takes beside what its rows take, in rows that are priced.
CAPTURE_ROWS = 8_000
#: Rows that hand a value on.
_MOVES = LAYOUT | {OpClass.VALUE, OpClass.PART, OpClass.CONVERT}
#: Those that hand a part of an array on, too.
_PARTS = _MOVES | {OpClass.DYNAMIC_SLICE}
#: Collectives that sharded weights of products lead to.
_AVOIDABLE = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
#: Communication over an axis that is exposed for less of the step is left alone.
LEAST_EXPOSED = 0.05
#: Saved activations that are less of the memory are left alone.
LEAST_SAVED = 0.05


@dataclass(frozen=True)
class Recapture:
    """Captures a model file's step again, changed."""

    estimate: Estimate
    request: CaptureRequest

    def candidate(self, kind: HintKind, change: str, attempt: str, **how: Any) -> HintCandidate:
        """A change of the request (`but`), of the step (`of_step`), or of JAX meanwhile (`within`)."""
        place, devices = how.pop("place", ""), how.pop("devices", 0)
        rows = CAPTURE_ROWS + 2 * sum(map(len, self.estimate.workload.programs))
        make = partial(self._outcome, **how)
        return HintCandidate(
            kind, change, attempt, CheckedBy.CAPTURE, rows, make, place, devices=devices
        )

    def _outcome(
        self,
        but: CaptureRequest | None = None,
        of_step: Callable[[AnyStep], AnyStep] | None = None,
        within: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> StepOutcome:
        request = (but or self.request).but(cross_check="")
        target = Target.parse(request.model)
        with importable(target.path.parent), contained(), within():
            check = None if of_step is None else lambda step, _: of_step(step)
            trace = captured_from(ModelFile.read(target), request, check)
        return estimated(trace.workload, self.estimate.request)


def recapture(e: Estimate, request: CaptureRequest) -> Recapture | None:
    """How to capture the step of an estimate again; None for scripts and programs in files."""
    if request.world or input_kind(Target.parse(request.model).path) is not InputKind.PYTHON:
        return None
    return Recapture(e, request)


# What makes a step fit.


def fitting(again: Recapture) -> Iterator[HintCandidate]:
    """Options of the entry, checkpointed loops, and twice the devices along an axis."""
    yield from _checkpoints(again)
    yield from _options(again)
    shape = again.estimate.workload.mesh.shape
    for axis, size in shape.items():
        larger = ",".join(f"{n}={2 * s if n == axis else s}" for n, s in shape.items())
        yield again.candidate(
            HintKind.MEMORY,
            f"take twice the devices along '{axis}' ({2 * size})",
            f"--mesh {larger}",
            but=again.request.but(mesh=larger),
            devices=2 * again.estimate.workload.mesh.size,
        )


def _options(again: Recapture) -> Iterator[HintCandidate]:
    """Each other choice of an option that the entry declares, one at a time."""
    given = parse_settings(again.request.settings)
    with importable((target := Target.parse(again.request.model)).path.parent), contained():
        args = Target.parse(again.request.args) if again.request.args is not None else None
        function = ModelFile.read(target).option_taker(args).function
        choices = option_choices(function) if function else {}
        defaults = {n: spelled(p.default) for n, p in _parameters(function).items()}
    now = {name: given.get(name, defaults.get(name)) for name in choices}
    others = [(name, [v for v in c.texts if v != now[name]]) for name, c in choices.items()]
    for number in range(max((len(values) for _, values in others), default=0)):
        for name, values in others:  # of each option one, before a second of any
            for value in values[number : number + 1]:
                settings = {**given, name: value}
                texts = tuple(f"{n}={v}" for n, v in settings.items())
                yield again.candidate(
                    HintKind.MEMORY,
                    f"set {name}={value or '(empty)'} instead of {now[name] or '(empty)'}",
                    f"--set {name}={value}",
                    but=again.request.but(settings=texts),
                )


def _parameters(function: Callable[..., Any] | None) -> dict[str, Any]:
    import inspect

    return dict(inspect.signature(function).parameters) if function else {}


def _checkpoints(again: Recapture) -> Iterator[HintCandidate]:
    """Bodies of JAX's scans, computed again in the backward pass."""
    memory = max((c.memory for c in again.estimate.classes), key=lambda m: m.total_bytes)
    saved = memory.breakdown.get(MemoryKind.SAVED_ACTIVATIONS, 0)
    programs = again.estimate.workload.programs
    if saved < LEAST_SAVED * memory.total_bytes or not any(len(p.regions) for p in programs):
        return
    yield again.candidate(
        HintKind.MEMORY,
        "compute the layers of jax.lax.scan again in the backward pass",
        "jax.lax.scan(jax.checkpoint(layer), ...)",
        within=checkpointed_scans,
        place=memory.at.location,
    )


@contextlib.contextmanager
def checkpointed_scans() -> Iterator[None]:
    """Let `jax.lax.scan` checkpoint the bodies that it is given, meanwhile."""
    import jax

    scan = jax.lax.scan

    def with_checkpoint(f: Any, *args: Any, **kwargs: Any) -> Any:
        return scan(jax.checkpoint(f), *args, **kwargs)

    jax.lax.scan = with_checkpoint
    try:
        yield
    finally:
        jax.lax.scan = scan


# Shardings of arguments.


def resharding(again: Recapture) -> Iterator[HintCandidate]:
    """The batch over axes that split nothing, and weights along another dimension."""
    mesh = again.estimate.workload.mesh
    for axis in unsharded_axes(again.estimate.workload)[:1]:
        yield again.candidate(
            HintKind.AXIS,
            f"split the batch over axis '{axis}', over which no argument is split",
            f"add '{axis}' to the first dimension of what holds indices: P((..., '{axis}'), ...)",
            of_step=partial(_batch_over, axis=axis, size=mesh.axis_size(axis)),
        )
    for weight, axis, place in _weights(again.estimate):
        for number in weight.other_dimensions(mesh, axis):
            yield again.candidate(
                HintKind.COLLECTIVE,
                f"shard {weight.name} over '{axis}' along another dimension",
                f"{weight.spec()}  becomes  {weight.moved(axis, number).spec()}",
                of_step=partial(_with_weight, weight=weight.moved(axis, number)),
                place=place,
            )


@dataclass(frozen=True)
class ShardedArgument:
    """An argument of a JAX step: its name, the axes of each dimension, and its shape on a device."""

    name: str
    axes: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """The name behind the parameter's: that of the same leaf in other trees, too."""
        return self.name[self.name.find("[") :] if "[" in self.name else ""

    def spec(self) -> str:
        """As JAX writes it."""
        return f"P({', '.join(repr(a[0] if len(a) == 1 else a or None) for a in self.axes)})"

    def moved(self, axis: str, to: int) -> ShardedArgument:
        """With `axis` along dimension `to` alone."""
        left = [tuple(a for a in axes if a != axis) for axes in self.axes]
        left[to] = (*left[to], axis)
        return replace(self, axes=tuple(left))

    def other_dimensions(self, mesh: Mesh, axis: str) -> list[int]:
        """Those that `axis` divides and does not split yet, the last first: two at most."""
        size = mesh.axis_size(axis)
        free = [
            n
            for n, (axes, length) in enumerate(zip(self.axes, self.shape, strict=True))
            if not axes and length >= 2 * size and length % size == 0
        ]
        return free[::-1][:2]


def _weights(e: Estimate) -> Iterator[tuple[ShardedArgument, str, str]]:
    """Weights of products that the partitioner communicates most for, with the axis and the place."""
    program = e.workload.programs[e.workload.classes[e.slowest_class].program]
    made = np.isin(program.collective, _AVOIDABLE)
    rows = np.flatnonzero(made)
    seen: set[tuple[str, str]] = set()
    sizes = program.comm_bytes * program.trips
    for row in rows[np.argsort(-sizes[rows], kind="stable")].tolist():
        axes = [a.name for a in program.groups[program.group[row]].axes]
        if len(axes) != 1 or exposed_ns(e, over=axes[0]) < LEAST_EXPOSED * e.step_time_ns:
            continue
        for product in _products(program, row):
            for weight in filter(
                None, (_argument(program, d) for d in program.dependencies(product))
            ):
                split = any(axes[0] in dimension for dimension in weight.axes)
                if split and (weight.name, axes[0]) not in seen and len(seen) < 3:
                    seen.add((weight.name, axes[0]))
                    yield weight, axes[0], program.row(product).location


def _products(program: Program, row: int) -> list[int]:
    """Products that read what a collective makes, or whose result it adds up, as it is or turned."""
    found: list[int] = []
    for neighbours in (_readers, _reads):
        queue = neighbours(program, row)
        for near in queue:  # which grows meanwhile
            if program.op[near] in PRODUCT:
                found.append(near)
            elif program.op[near] in _MOVES and len(queue) < 16:
                queue += neighbours(program, near)
    return found


def _readers(program: Program, row: int) -> list[int]:
    return [int(r) for r in program.dep_owner[program.deps == row]]


def _reads(program: Program, row: int) -> list[int]:
    return [int(r) for r in program.dependencies(row)]


def _argument(program: Program, row: int) -> ShardedArgument | None:
    """The argument that a row is a part, a turned form or another type of."""
    for _ in range(16):
        if program.kind[row] == Kind.PARAMETER:
            return sharded(program, row)
        deps = program.dependencies(row)
        is_gather = program.collective[row] == Collective.ALL_GATHER
        if not len(deps) or not (program.op[row] in _PARTS or is_gather):
            return None
        row = int(max(deps.tolist(), key=lambda d: program.result_bytes[d]))
    return None


def sharded(program: Program, row: int) -> ShardedArgument | None:
    """What a PARAMETER row of a partitioned JAX program says of its sharding."""
    found = program.row(row)
    dimensions = re.findall(r"\{([^{}]*)\}", found.cause)
    axes = tuple(tuple(re.findall(r'"([^"]+)"', d)) for d in dimensions)
    if len(axes) != len(found.shape) or ":" in found.cause:
        return None
    return ShardedArgument(found.name, axes, found.shape)


def _with_weight(step: AnyStep, weight: ShardedArgument) -> AnyStep:
    """The step with the sharding of a weight changed, and of what is like it in other trees."""

    def change(path: str, leaf: Any) -> Any:
        if not weight.path or not path.endswith(weight.path) or leaf.ndim != len(weight.axes):
            return leaf.sharding.spec
        return [a[0] if len(a) == 1 else a or None for a in weight.axes]

    return _respecified(step, change)


def _batch_over(step: AnyStep, axis: str, size: int) -> AnyStep:
    """The step with arguments of indices split over an axis along their first dimension, too."""

    def change(path: str, leaf: Any) -> Any:
        spec = [*leaf.sharding.spec, *[None] * leaf.ndim][: leaf.ndim]
        if leaf.ndim < 2 or np.dtype(leaf.dtype).kind not in "iu" or leaf.shape[0] % size:
            return spec
        before = spec[0] if isinstance(spec[0], tuple) else (spec[0],) if spec[0] else ()
        return [(*before, axis), *spec[1:]]

    return _respecified(step, change)


def _respecified(step: AnyStep, change: Callable[[str, Any], Sequence[Any]]) -> AnyStep:
    """A JAX step whose arguments have the shardings that `change` gives. Raises FL219 for others."""
    if not isinstance(step, Step) or step.in_shardings is not None:
        raise FlintError("FL219", "the shardings of this step are not those of JAX arguments")
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def changed(path: Any, leaf: Any) -> Any:
        at = getattr(leaf, "sharding", None)
        if not isinstance(at, NamedSharding):
            return leaf
        spec = PartitionSpec(*change(jax.tree_util.keystr(path), leaf))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(at.mesh, spec))

    args, kwargs = jax.tree_util.tree_map_with_path(changed, (step.args, dict(step.kwargs)))
    return replace(step, args=args, kwargs=kwargs)
