"""Changes of a captured program that are priced again: nothing is captured for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.backends.cost.network.placement import NetworkPlacement
from flint.ir.columns import is_any
from flint.ir.edit import Editor
from flint.ir.op_class import ATTENTION, MERGED, PRODUCT, OpClass
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import run_passes
from flint.passes.fusion.attention import FuseAttention
from flint.passes.partition.regathered import Regathered, regathered, sentence
from flint.tools.hints.hint import (
    LEAST_SHARE,
    CheckedBy,
    HintCandidate,
    HintKind,
    StepOutcome,
    estimated,
)

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.workload import Workload
    from flint.requests.estimate import EstimateRequest

#: Types of 16 bits, and the wide one that sums of products have before they are rounded to them.
NARROW, WIDE = ("bf16", "bfloat16", "f16", "float16"), ("f32", "float32")
#: The largest heads that flash attention of cuDNN and PyTorch takes.
MOST_OF_HEAD = 256
_SOFTMAX = frozenset({OpClass.EXPONENTIAL, OpClass.SOFTMAX})
_SDPA = "torch.nn.functional.scaled_dot_product_attention(q, k, v, ...), with the mask it has now"
_CUDNN = (
    'jax.nn.dot_product_attention(q, k, v, ..., implementation="cudnn"), with the mask it has now'
)


def graph_candidates(e: Estimate, request: EstimateRequest) -> Iterator[HintCandidate]:
    """What may be worth a try, what usually gains most first."""
    rows = sum(map(len, e.workload.programs))
    yield from _placements(e, request)
    yield from _host(e, request, rows)
    yield from _attention(e, request, rows)
    yield from _collectives(e, request, rows)
    yield from _axes(e, request, rows)


def exposed_ns(e: Estimate, kind: str = "", over: str = "") -> float:
    """How much of the slowest class's step is exposed work of a kind, or communication over an axis."""
    return sum(
        s.exposed_ns
        for s in e.classes[e.slowest_class].shares
        if (kind and s.kind == kind)
        or (over and over in (part.partition(":")[0] for part in s.over.split(",")))
    )


# Where axes lie on networks.


def _placements(e: Estimate, request: EstimateRequest) -> Iterator[HintCandidate]:
    """The axis that is waited for most on an outer network, put on the innermost one."""
    networks = [n.name for n in e.cluster.network]
    parts = NetworkPlacement(e.workload.mesh, e.cluster, request.mapping).parts
    outer = sorted({p.axis for p in parts if p.tier > 0 and p.size > 1})
    if request.mapping is not None or not outer or len(networks) < 2:
        return
    axis = max(outer, key=lambda a: exposed_ns(e, over=a))
    if not exposed_ns(e, over=axis):
        return
    yield HintCandidate(
        HintKind.PLACEMENT,
        f"place devices so that axis '{axis}' lies on {networks[0]}",
        f"--map {axis}={networks[0]}, and name '{axis}' last where the mesh is made",
        CheckedBy.REQUEST,
        sum(map(len, e.kernels.programs)),
        partial(estimated, e.workload, request.but(mapping={axis: networks[0]})),
    )


# Kernels that a framework launches one by one.


def _host(e: Estimate, request: EstimateRequest, rows: int) -> Iterator[HintCandidate]:
    if e.profile in ("eager", "torch"):
        yield HintCandidate(
            HintKind.HOST,
            "compile the model: chains of operators become one kernel, for one launch",
            "model = torch.compile(model)   (flint estimate --profile inductor)",
            CheckedBy.REQUEST,
            rows,
            partial(estimated, e.workload, request.but(profile="inductor")),
        )
    if exposed_ns(e, kind="host") >= LEAST_SHARE * e.step_time_ns:
        yield HintCandidate(
            HintKind.HOST,
            "launch the step as a CUDA graph: kernels wait for their host",
            'torch.cuda.CUDAGraph, or torch.compile(model, mode="reduce-overhead")   '
            "(flint estimate --replace host=none)",
            CheckedBy.REQUEST,
            sum(map(len, e.kernels.programs)),
            partial(estimated, e.workload, request.but(replace=(*request.replace, "host=none"))),
        )


# Attention that is written out.


def _attention(e: Estimate, request: EstimateRequest, rows: int) -> Iterator[HintCandidate]:
    """Flash attention in place of what a program writes out: on GPUs, in 16 bits."""
    is_jax = e.profile == "xla-gpu"
    softmax = any(_has_softmax(p) for p in e.workload.programs)
    if e.profile not in ("xla-gpu", "eager", "torch") or not softmax:
        return

    @cache
    def fused() -> Workload:
        return changed(e.workload, partial(run_passes, passes=(FuseAttention(named=True),)))

    def make() -> StepOutcome | None:
        if not any(len(_flash(p)) for p in fused().programs):
            return None
        flash = request.but(profile="xla-gpu+flash")
        return estimated(e.workload, flash) if is_jax else estimated(fused(), request)

    yield HintCandidate(
        HintKind.ATTENTION,
        "call fused attention instead of writing it out",
        _CUDNN if is_jax else _SDPA,
        CheckedBy.GRAPH,
        2 * rows,
        make,
        where=lambda: next(p.row(r).location for p in fused().programs for r in _flash(p)),
    )


def _has_softmax(program: Program) -> bool:
    """Whether there may be one between products of several matrices."""
    several = is_any(program, PRODUCT) & (program.dims[:, 0] > 1)
    return bool(several.any() and is_any(program, _SOFTMAX).any())


def _flash(program: Program) -> list[int]:
    """Attention that a library's kernel can do: in 16 bits, of heads that are not larger."""
    rows = np.flatnonzero(
        is_any(program, MERGED & ATTENTION) & (program.dims[:, 3] <= MOST_OF_HEAD)
    )
    return [int(row) for row in rows if program.dtypes[program.dtype[row]] in NARROW]


# Collectives that need not be.


def _collectives(e: Estimate, request: EstimateRequest, rows: int) -> Iterator[HintCandidate]:
    program = e.workload.programs[e.workload.classes[e.slowest_class].program]
    for found in regathered(program)[:2]:
        gather = program.row(found.row)
        yield HintCandidate(
            HintKind.COLLECTIVE,
            f"avoid the all_gather of {gather.dtype}{list(gather.shape)} over {' and '.join(found.axes)}, "
            "which no sharding asked for",
            sentence(program, found).rpartition(": ")[2],
            CheckedBy.GRAPH,
            rows,
            partial(_on(e.workload, request), partial(_moved_instead, found=found)),
            gather.location,
        )
    wide = wide_sums(program)
    if wide:
        largest = program.row(max(wide, key=lambda r: program.comm_bytes[r] * program.trips[r]))
        yield HintCandidate(
            HintKind.COLLECTIVE,
            f"do not add up in {largest.dtype} what is rounded to 16 bits after "
            f"{len(wide)} {'collective' if len(wide) == 1 else 'collectives'}",
            "omit preferred_element_type (or the cast to it) of the product, so that its result is sent "
            "in 16 bits",
            CheckedBy.GRAPH,
            rows,
            partial(_on(e.workload, request), narrowed),
            largest.location,
        )


def _on(
    workload: Workload, request: EstimateRequest
) -> Callable[[Callable[[Program], Program]], StepOutcome]:
    return lambda change: estimated(changed(workload, change), request)


def changed(workload: Workload, change: Callable[[Program], Program]) -> Workload:
    """The workload with each of its programs changed, and verified."""
    found = replace(workload, programs=tuple(map(change, workload.programs)))
    found.verify()
    return found


def _moved_instead(program: Program, found: Regathered) -> Program:
    """The program with an exchange of parts in place of a gather: no device holds the whole value."""
    match = [f for f in regathered(program) if f.row == found.row]
    if not match:
        return program
    edit, row = Editor(program), found.row
    size = program.groups[program.group[row]].size(program.mesh)
    part = int(program.result_bytes[row]) // size
    edit.change(row, collective=Collective.ALL_TO_ALL, comm_bytes=part, result_bytes=part)
    return edit.build().program


def wide_sums(program: Program) -> list[int]:
    """Sums of products over devices in 32 bits that are only read to be rounded to 16."""
    readers: dict[int, list[int]] = {}
    for read, reader in zip(program.deps.tolist(), program.dep_owner.tolist(), strict=True):
        readers.setdefault(read, []).append(reader)
    sums = np.isin(program.collective, (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER))

    def dtype(row: int) -> str:
        return str(program.dtypes[program.dtype[row]])

    def is_wide(row: int) -> bool:
        reading, made = readers.get(row, []), program.dependencies(row).tolist()
        return (
            dtype(row) in WIDE
            and bool(reading)
            and all(program.op[r] == OpClass.CONVERT and dtype(r) in NARROW for r in reading)
            and all(program.op[r] in PRODUCT and len(readers[r]) == 1 for r in made)
        )

    return [row for row in np.flatnonzero(sums).tolist() if is_wide(row)]


def narrowed(program: Program) -> Program:
    """The program with `wide_sums` in 16 bits, and the products that they are of."""
    edit = Editor(program)
    names = [n for n in program.dtypes if n in NARROW]
    for row in wide_sums(program):
        product = int(program.dependencies(row)[0])
        halves: dict[str, Any] = {
            name: int(getattr(program, name)[row]) // 2
            for name in ("comm_bytes", "result_bytes", "operand_bytes")
        }
        edit.change(row, dtype=names[0], **halves)
        edit.change(product, dtype=names[0], result_bytes=int(program.result_bytes[product]) // 2)
    return edit.build().program


# Axes over which nothing is split.


def unsharded_axes(workload: Workload) -> list[str]:
    """Axes of several devices that no argument is sharded over."""
    said = {
        p.strings[n]
        for p in workload.programs
        for n in np.unique(p.cause[p.kind == Kind.PARAMETER]).tolist()
    }
    sizes = workload.mesh.shape.items()
    if any(c.where or c.ranks for c in workload.classes):  # stages of a pipeline, pools
        return []
    if workload.is_launched:  # a recorded rank has its own part of the batch, which nothing says
        return []
    return [a for a, size in sizes if size > 1 and not any(f'"{a}"' in s for s in said)]


def unused_axes(workload: Workload) -> list[str]:
    """Those of them over which nothing is sent: devices along them do the same."""
    used: set[str] = set()
    for program in workload.programs:
        if any(group.ranks for group in program.groups) or any(r.pairs for r in program.routes):
            return []
        used |= {
            a.name for either in (program.groups, program.routes) for g in either for a in g.axes
        }
    return [axis for axis in unsharded_axes(workload) if axis not in used]


def _axes(e: Estimate, request: EstimateRequest, rows: int) -> Iterator[HintCandidate]:
    """The mesh without an axis: fewer devices that take as long."""
    for axis in unused_axes(e.workload)[:1]:
        mesh = e.workload.mesh
        left = {name: size for name, size in mesh.shape.items() if name != axis} or {axis: 1}
        smaller = type(mesh)(tuple(left), tuple(left.values()))
        yield HintCandidate(
            HintKind.AXIS,
            f"nothing is split over axis '{axis}' ({mesh.axis_size(axis)} devices do the same): "
            "split the batch over it, or leave it out",
            f"--mesh {smaller}" if smaller.size > 1 else f"--mesh {axis}=1",
            CheckedBy.GRAPH,
            rows,
            partial(_on_mesh, e.workload, request, smaller),
            devices=smaller.size,
        )


def _on_mesh(workload: Workload, request: EstimateRequest, mesh: object) -> StepOutcome:
    programs = tuple(p.with_rows(mesh=mesh) for p in workload.programs)
    found = replace(workload, mesh=mesh, programs=programs)  # type: ignore[arg-type]
    found.verify()
    return estimated(found, request)
