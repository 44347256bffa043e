"""Evaluator: points of a space become results, in one process, each program captured once."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flint.backends.chakra.reading.captured import workload_of
from flint.backends.cost.estimate import estimate_of, ranking_notes
from flint.backends.cost.memory.memory import MemoryKind
from flint.backends.cost.setting import Setting, setting_of
from flint.backends.cost.simulate.exposure import IDLE, Share, labels_of, shares
from flint.capturing import Check, capture, captured_from
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.frontends.contained import contained
from flint.io.scratch import scratch_folder
from flint.ir.mesh import Mesh
from flint.passes.pipeline.split.shared import SharedBodies
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.text import format_bytes
from flint.tools.explore.evaluation.bounds import Bound, bound_of
from flint.tools.explore.evaluation.tokens import Tokens, tokens_by, tokens_of
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.explore.machine.text import cluster_text
from flint.tools.explore.point import Pairs, Point
from flint.tools.explore.result import ClassResult, PoolRole, Result, Status
from flint.tools.explore.subject import Subject, captured, estimated

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_numbers import ClassEstimate
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.setting import Timed
    from flint.cluster.models import Cluster
    from flint.cluster.tables import Quantity
    from flint.frontends.model_file import ModelFile, Target
    from flint.frontends.torch_world.record.process import RankProcesses
    from flint.ir.workload import Workload
    from flint.steps.entry import AnyStep
    from flint.tracing import Trace

# From what an estimate says to a Result.


def result_of(point: Point, e: Estimate, tokens: int = 0) -> Result:
    """What came of a point that was estimated; `tokens` are those of a step."""
    last = e.classes[int(np.argmax([c.end_ns for c in e.classes]))]
    large = max(e.classes, key=lambda c: c.memory.total_bytes)
    fits = all(c.memory.fits for c in e.classes)
    return Result(
        point=point,
        status=Status.FITS if fits else Status.TOO_LARGE,
        devices=e.workload.mesh.size,
        reason="" if fits else _needs(large.memory, e.cluster.chip.name),
        place="" if fits else large.memory.at.location or large.memory.at.scope,
        step_time_ns=e.step_time_ns,
        ttft_ns=0.0 if e.serving is None else e.serving["ttft_ns"],
        tpot_ns=0.0 if e.serving is None else e.serving["tpot_ns"],
        low_ns=e.interval.low_ns if e.interval else 0.0,
        high_ns=e.interval.high_ns if e.interval else 0.0,
        mfu=e.mfu,
        tokens=tokens,
        memory_bytes=large.memory.total_bytes,
        capacity_bytes=large.memory.capacity_bytes,
        compute_ns=last.compute_ns,
        exposed_ns=_exposed(last),
        waiting_ns=_idle(last, "wait"),
        host_ns=_idle(last, "host"),
        memory={**large.memory.breakdown, **large.memory.runtime},
        classes=tuple(map(_class_result, e.classes, roles(e.workload))),
        taken=_taken(e.stack.name, e.policy.name, e.profile),
        price_per_hour=_value(e.cluster.price_per_hour),
        power_w=_value(e.cluster.chip.power_w),
        notes=e.notes,
    )


def parts_of(setting: Setting, timed: Timed) -> list[Sequence[Share]]:
    """Shares of the rank class that ends last, and of all where they are of different pools."""
    kernels, classes = setting.kernels, timed.timeline.classes
    labels = kernels.kept.get("labels", None, lambda: list(map(labels_of, kernels.programs)))
    last = int(np.argmax([c.total_ns for c in classes]))
    every = "pools" in setting.workload.metadata
    return [
        shares(c, labels[of.program]) if every or number == last else ()
        for number, (c, of) in enumerate(zip(classes, kernels.classes, strict=True))
    ]


def too_large(point: Point, setting: Setting, memory: Sequence[MemoryUse]) -> Result:
    """A point whose memory does not fit: it is not placed in time."""
    chip = setting.cluster.chip
    large = max(memory, key=lambda m: m.total_bytes)
    kinds = {**large.breakdown, **large.runtime}
    classes = [
        ClassResult(
            c.name,
            int(ranks),
            0.0,
            m.total_bytes,
            cache_bytes=m.breakdown.get(MemoryKind.STATE, 0),
            role=role,
        )
        for c, ranks, m, role in zip(
            setting.workload.classes,
            setting.ranks_of_classes(),
            memory,
            roles(setting.workload),
            strict=True,
        )
    ]
    return Result(
        point=point,
        status=Status.TOO_LARGE,
        devices=setting.workload.mesh.size,
        reason=_needs(large, chip.name),
        place=large.at.location or large.at.scope,
        memory_bytes=large.total_bytes,
        capacity_bytes=large.capacity_bytes,
        memory=kinds,
        classes=tuple(classes),
        taken=_taken(setting.stack.name, setting.policy.name, setting.profile),
        price_per_hour=_value(setting.cluster.price_per_hour),
        power_w=_value(chip.power_w),
    )


def too_large_by(point: Point, bound: Bound, cluster: Cluster, devices: int) -> Result:
    """A point whose arguments alone do not fit: it was not captured."""
    capacity = int(cluster.chip.memory_bytes.value)
    return Result(
        point=point,
        status=Status.TOO_LARGE,
        devices=devices,
        reason=f"its arguments alone take {format_bytes(bound.num_bytes)} of the "
        f"{format_bytes(capacity)} of {cluster.chip.name}",
        place=bound.largest,
        memory_bytes=bound.num_bytes,
        capacity_bytes=capacity,
        is_bound=True,
        price_per_hour=_value(cluster.price_per_hour),
        power_w=_value(cluster.chip.power_w),
    )


def _needs(use: MemoryUse, chip: str) -> str:
    kinds = {**use.breakdown, **use.runtime}
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    return (
        f"it needs {format_bytes(use.total_bytes)} of the {format_bytes(use.capacity_bytes)} of "
        f"{chip}" + (f", most of it for {most.replace('_', ' ')}" if most else "")
    )


def _taken(stack: str, policy: str, profile: str) -> dict[str, str]:
    return {"stack": stack, "policy": policy, "profile": profile}


def _value(quantity: Quantity | None) -> float:
    return quantity.value if quantity else 0.0


def _class_result(c: ClassEstimate, role: PoolRole) -> ClassResult:
    return ClassResult(
        c.name,
        c.ranks,
        c.end_ns,
        c.memory.total_bytes,
        waiting_ns=_idle(c, "wait"),
        cache_bytes=c.memory.breakdown.get(MemoryKind.STATE, 0),
        role=role,
    )


def roles(workload: Workload) -> list[PoolRole]:
    """What each rank class of a workload serves."""
    pools = workload.metadata.get("pools")
    if pools is None:
        return [PoolRole.STEP] * len(workload.classes)
    where = [c.where[pools["axis"]] for c in workload.classes]
    return [PoolRole.PREFILL if w == tuple(pools["prefill"]) else PoolRole.DECODE for w in where]


def _exposed(c: ClassEstimate) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in c.shares:
        if share.over and share.exposed_ns:
            found[share.over] = found.get(share.over, 0.0) + share.exposed_ns
    return found


def _idle(c: ClassEstimate, kind: str) -> float:
    assert kind in IDLE, f"{kind} is not a kind of idle time"
    return float(sum(s.exposed_ns for s in c.shares if s.kind == kind))


#: Clusters that are kept: some presets and files.
_MOST_MACHINES = 64
#: Python's collector looks this seldom meanwhile: nearly all that is made stays for the whole point.
_COLLECTED = (50_000, 20, 50)


@dataclass(frozen=True)
class _Taken:
    """What was captured, by which options, and the tokens of its step."""

    options: CaptureRequest
    trace: Trace
    tokens: Tokens


class _TooLargeError(Exception):
    """The arguments of a step alone fit no cluster that is asked for."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self.bound = bound


@dataclass
class Evaluator:
    """Evaluates the points of one subject.

    It imports the model file once, and keeps it until `close`, as it keeps the process that ranks are
    forks of. It keeps the last capture, and what the pipelines of several have in common.
    """

    subject: Subject
    _file: ModelFile | None = field(default=None, init=False, repr=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _last: _Taken | None = field(default=None, init=False, repr=False)
    _machines: dict[str, Cluster] = field(default_factory=dict, init=False, repr=False)
    _measured: dict[Any, Workload] = field(default_factory=dict, init=False, repr=False)
    _shared: SharedBodies = field(default_factory=SharedBodies, init=False, repr=False)
    _told: ToldChips = field(init=False, repr=False)
    _ranks: RankProcesses | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._told = ToldChips(self.subject)
        weakref.finalize(self, self._told.close)
        weakref.finalize(self, self._open.close)

    def evaluate(self, points: Sequence[Point]) -> list[Result]:
        """A result for each point, in their order; all are of one `program`.

        What a user can mend makes a point REFUSED, anything else that is raised FAILED.
        """
        found: dict[Point, Result] = {}
        with _rarely_collected():
            for alike in self._captured_alike(points):
                found.update(zip(alike, self._of_a_capture(alike), strict=True))
        return [found[p] for p in points]

    def trace(self, point: Point) -> Trace:
        """What `flint capture` makes of a point. Raises as that does."""
        return self._taken(point).trace

    def close(self) -> None:
        """Forget the modules of the model, and what was captured."""
        self._open.close()
        self._last, self._shared = None, SharedBodies()
        self._machines.clear()
        self._told.close()
        self._file, self._ranks = None, None

    def _captured_alike(self, points: Sequence[Point]) -> Iterable[Sequence[Point]]:
        """Scripts and compilers are told the chip, so what they make is of one cluster's."""
        alike: dict[Told, list[Point]] = {}
        for point in points:
            alike.setdefault(self._told.of(point), []).append(point)
        return alike.values()

    def _of_a_capture(self, points: Sequence[Point]) -> list[Result]:
        machines: dict[Point, Cluster] = {}
        found: dict[Point, Result] = {}
        for point in points:
            try:
                machines[point] = self._machine(point)
            except Exception as error:  # noqa: BLE001  one point's fault is no other's
                found[point] = _rejected(point, error)
        left = [p for p in points if p in machines]
        try:
            taken = self._taken(left[0], machines.values()) if left else None
        except _TooLargeError as error:
            for p in left:
                found[p] = too_large_by(p, error.bound, machines[p], _devices(p))
        except Exception as error:  # noqa: BLE001
            found.update({p: _rejected(p, error) for p in left})
        else:
            found.update({p: self._estimated(p, taken, machines[p]) for p in left if taken})
        return [found[p] for p in points]

    def _machine(self, point: Point) -> Cluster:
        """The cluster of a point, whose file is read once."""
        if point.cluster not in self._machines:
            if len(self._machines) >= _MOST_MACHINES:
                self._machines.clear()
            self._machines[point.cluster] = load_cluster(point.cluster)
        return changed(self._machines[point.cluster], point.changes)

    def _estimated(self, point: Point, taken: _Taken, cluster: Cluster) -> Result:
        try:
            setting = setting_of(taken.trace.workload, self._request(point).but(cluster=cluster))
            return self._result(point, setting, taken.tokens.count)
        except Exception as error:  # noqa: BLE001
            return _rejected(point, error)

    def _request(self, point: Point) -> EstimateRequest:
        """How a point is estimated; measured workloads are read once."""
        found = estimated(self.subject, point)
        for path in found.measured:
            if path not in self._measured:
                self._measured[path] = workload_of(path)
        return found.but(measured=tuple(self._measured[path] for path in found.measured))

    def _result(self, point: Point, setting: Setting, tokens: int) -> Result:
        """Memory first: what does not fit is not placed in time."""
        memory = setting.memory()
        if not (self.subject.keep_infeasible or all(m.fits for m in memory)):
            return replace(too_large(point, setting, memory), tokens=tokens)
        timed = setting.timed()
        found = estimate_of(setting, timed, memory, parts_of(setting, timed))
        return result_of(point, replace(found, notes=ranking_notes(setting)), tokens)

    def _taken(self, point: Point, machines: Iterable[Cluster] = ()) -> _Taken:
        """The capture of a point, that of the last time if it is the same."""
        options = self._options(point)
        if self._last is None or self._last.options != options:
            self._last = None  # two captures at a time are too many
            self._last = self._capture(point, options, machines)
        return self._last

    def _capture(
        self, point: Point, options: CaptureRequest, machines: Iterable[Cluster]
    ) -> _Taken:
        seen = [Tokens()]
        capacity = max((int(m.chip.memory_bytes.value) for m in machines), default=0)

        def check(step: AnyStep, mesh: Mesh) -> None:
            seen[0] = tokens_of(step)
            limited = capacity and not self.subject.keep_infeasible
            if limited and (bound := bound_of(step, mesh, capacity)):
                raise _TooLargeError(bound)

        with self._forking():
            trace, tokens = self._captured(options, check), seen[0]
        if self.subject.tokens:
            mesh = point.mesh or str(trace.workload.mesh)  # of a file the program's own
            tokens = tokens_by(self.subject.tokens, mesh, self._values(point, options))
        return _Taken(options, trace, tokens)

    def _values(self, point: Point, options: CaptureRequest) -> dict[str, str]:
        """Options by name: what is given, else what their function takes without it."""
        from flint.frontends.model_file import Target
        from flint.steps.options import parse_settings
        from flint.tools.explore.space.declared import Declared, ModelKind

        if options.world:  # a script's own options: those that are swept are known
            return dict(point.settings)
        found: dict[str, str] = {}
        if self._file is not None:
            args = Target.parse(options.args) if options.args is not None else None
            with contained():
                taker = self._file.option_taker(args)
            found = dict(Declared(ModelKind.ENTRY, taker.place, taker).defaults())
        return found | parse_settings(options.settings) | dict(options.pipeline.offered())

    def _captured(self, options: CaptureRequest, check: Check | None = None) -> Trace:
        from flint.frontends.model_file import Target
        from flint.frontends.plugin_libraries import load_plugin_libraries
        from flint.steps.input_kind import InputKind, input_kind

        target = Target.parse(self.subject.model)
        if options.world or input_kind(target.path) is not InputKind.PYTHON:
            return capture(options)
        load_plugin_libraries()
        with contained():
            return captured_from(self._model_file(target), options, check, self._shared)

    def _forking(self) -> AbstractContextManager[None]:
        """A context whose captures fork ranks of one process."""
        from flint.frontends.torch_world.record.process import RankProcesses, shared

        self._ranks = self._ranks or self._open.enter_context(RankProcesses())
        return shared(self._ranks)

    def _model_file(self, target: Target) -> ModelFile:
        from flint.frontends.model_file import ModelFile, importable

        if self._file is None:
            self._open.enter_context(importable(target.path.parent))
            self._file = ModelFile.read(target)
        return self._file

    def _options(self, point: Point) -> CaptureRequest:
        clusters = (self._told.cluster(point),) if point.cluster else ()
        return captured(self.subject, point).but(clusters=clusters)


@contextmanager
def _rarely_collected() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(*_COLLECTED)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _rejected(point: Point, error: Exception) -> Result:
    devices = _devices(point)
    if isinstance(error, FlintError):
        return Result(
            point, Status.REFUSED, devices, error.message, error.code or "", error.place or ""
        )
    said = traceback.format_exception_only(error)[-1].strip()
    return Result(point, Status.FAILED, devices, said, place=_raised_at(error))


def _raised_at(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""


def _devices(point: Point) -> int:
    try:
        return Mesh.parse(point.mesh).size
    except FlintError:
        return 0


#: A cluster, and the changes of its chip.
Told: TypeAlias = tuple[str, Pairs]


@dataclass
class ToldChips:
    """The clusters that captures of a subject name: files of their own where points change the chip."""

    subject: Subject
    _open: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _files: dict[Told, str] = field(default_factory=dict, init=False, repr=False)

    def of(self, point: Point) -> Told:
        """What says which chip is told; the same for all points where none is."""
        if not (self.subject.world or self.subject.compiler):
            return "", ()
        return point.cluster, tuple(c for c in point.changes if c[0].split(".")[0] == "chip")

    def cluster(self, point: Point) -> str:
        """The cluster that is named. Raises FlintError as `cluster_text` does."""
        told = self.of(point)
        if not told[1]:
            return point.cluster
        if told not in self._files:
            file = self._open.enter_context(scratch_folder()) / "machine.toml"
            file.write_text(cluster_text(*told, file.stem, file.parent), encoding="utf-8")
            self._files[told] = str(file)
        return self._files[told]

    def close(self) -> None:
        """Remove the files."""
        self._files.clear()
        self._open.close()
