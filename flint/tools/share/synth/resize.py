"""A remembered program at other sizes: on the mesh, with the layers and near the totals that are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.memory.memory import step_memory
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.workload import Workload
from flint.tools.share.shapes.totals import Totals
from flint.tools.share.sizes import Sizes
from flint.tools.share.synth.conditions import Conditions, depth_of, flops_of
from flint.tools.share.totals import comm_bytes_by_label

#: How far sizes are drawn from the remembered ones, and how far they may go after that, as factors.
_DRAWN, _MOST_FACTOR = 1.6, 256.0
#: Factors that a size is tried at, and pairs of sizes that are tried together in a step; steps of a search.
_FACTORS = tuple(2.0**e for s in (3, 1, 0.5, 0.25, 0.1, 0.04, 0.015) for e in (-s, s))
_PAIRS, _STEPS = 64, 80
#: Totals this near (in logarithms) are near enough.
_NEAR = 0.01
#: Sizes keep this power of two, as far as they have it.
_GRAIN = 16
#: How often memory is measured and aimed at again: it is known exactly of a whole workload only.
_MEMORY_ROUNDS = 4


def resized(workload: Workload, asked: Conditions, random: np.random.Generator) -> Workload:
    """The workload on the mesh and with the layers of `asked`, its totals as near as its sizes allow.

    Raises FlintError FL905 for a mesh or layers that it cannot have.
    """
    sizes = _placed(workload, asked)
    search = _Search(sizes, Totals.of(sizes), random)
    aims = _aims(sizes.workload, asked)
    found = search.nearest(aims)
    for _ in range(_MEMORY_ROUNDS if asked.memory_bytes else 0):
        assert asked.memory_bytes is not None
        off = math.log(asked.memory_bytes / _peak_bytes(found))
        if abs(off) < _NEAR:
            break
        aims = replace(aims, memory=(aims.memory or 0.0) + off)
        found = search.nearest(aims)
    return _with_whole_mesh(found, asked)


def _peak_bytes(workload: Workload) -> int:
    return max(use.peak_bytes for use in step_memory(workload))


# mesh and layers --------------------------------------------------------------------------------------


def _placed(workload: Workload, asked: Conditions) -> Sizes:
    """On the axes of several devices of the mesh that is asked for, in their order, with its layers."""
    mesh = workload.mesh
    if asked.mesh is not None:
        used = [n for n, size in mesh.shape.items() if size > 1]
        axes = [(n, size) for n, size in asked.mesh.shape.items() if size > 1][: len(used)]
        if len(axes) < len(used):
            raise FlintError(
                "FL905", f"{len(used)} axes of several devices, but the mesh has {len(axes)}"
            )
        workload = _with_axes(workload, dict(zip(used, (n for n, _ in axes), strict=True)))
        mesh = Mesh(tuple(n for n, _ in axes), tuple(size for _, size in axes))
    sizes = Sizes.of(workload)
    layers = _layers(sizes, asked)
    changes = layers or mesh != workload.mesh
    return Sizes.of(sizes.resized(layers, mesh)) if changes else sizes


def _with_axes(workload: Workload, new: Mapping[str, str]) -> Workload:
    """The workload with new names of axes; those without one have one device, and go."""

    def named(axes: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
        return tuple(replace(a, name=new[a.name]) for a in axes if a.name in new)

    program = workload.programs[0]
    mesh = Mesh(tuple(new.values()), tuple(workload.mesh.shape[n] for n in new))
    groups = tuple(replace(g, axes=named(g.axes)) for g in program.groups)
    routes = tuple(replace(r, axes=named(r.axes)) for r in program.routes)
    found = replace(program, mesh=mesh, groups=groups, routes=routes)
    return replace(workload, mesh=mesh, programs=(found,))


def _with_whole_mesh(workload: Workload, asked: Conditions) -> Workload:
    """On the whole mesh: axes that the program does not know hold devices that do the same."""
    if asked.mesh is None or asked.mesh == workload.mesh:
        return workload
    programs = tuple(replace(p, mesh=asked.mesh) for p in workload.programs)
    return replace(workload, mesh=asked.mesh, programs=programs)


def _layers(sizes: Sizes, asked: Conditions) -> dict[int, int]:
    depth = depth_of(sizes.workload.programs[0])
    if asked.depth is None or asked.depth == depth:
        return {}
    found = {v.number: asked.depth for v in sizes.variables if v.layers and v.value == depth}
    if not found:
        raise FlintError("FL905", f"{depth} layers, but no loop over them")
    return found


# totals -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Aims:
    """Logarithms by which totals are to move: by their number in `Totals`; of memory beside them."""

    totals: dict[int, float]
    memory: float | None = None


def _aims(workload: Workload, asked: Conditions) -> _Aims:
    """From the totals of a workload to those that are asked for; what it does not send stays unsent."""
    program = workload.programs[0]
    found: dict[int, float] = {}
    if asked.flops and flops_of(program):
        found[0] = math.log(asked.flops / flops_of(program))
    for number, (label, sent) in enumerate(comm_bytes_by_label(program).items()):
        if asked.axis_bytes.get(label) and sent:
            found[3 + number] = math.log(asked.axis_bytes[label] / sent)
    peak = math.log(asked.memory_bytes / _peak_bytes(workload)) if asked.memory_bytes else None
    return _Aims(found, peak)


@dataclass(frozen=True)
class _Search:
    """One size after another, or two, by simple factors, from sizes that are drawn."""

    sizes: Sizes
    totals: Totals
    random: np.random.Generator

    def nearest(self, aims: _Aims) -> Workload:
        """The workload whose totals are nearest to the aims, of those that the steps come by."""
        at = self._rounded(self.totals.own * self._drawn())
        miss = self._miss(at[None, :], aims)[0]
        for _ in range(_STEPS):
            if miss < _NEAR**2:
                break
            tried = self._rounded(at * np.array(list(self._moves())))
            misses = self._miss(tried, aims)
            best = int(misses.argmin())
            if misses[best] >= miss:
                break
            at, miss = tried[best], misses[best]
        return self.sizes.resized({n: int(v) for n, v in enumerate(at)})

    def _drawn(self) -> Float64s:
        factors = _DRAWN ** self.random.uniform(-1.0, 1.0, len(self.totals.own))
        return np.where(self._may_move, factors, 1.0)

    @property
    def _may_move(self) -> np.ndarray:
        return np.array(
            [not v.layers and v.value > 1 for v in self.sizes.variables], dtype=np.bool_
        )

    def _moves(self) -> Iterator[Float64s]:
        movable, ones = np.flatnonzero(self._may_move), np.ones(len(self.totals.own))
        for number in movable.tolist():
            for factor in _FACTORS:
                yield np.where(np.arange(len(ones)) == number, factor, ones)
        for _ in range(_PAIRS if len(movable) > 1 else 0):
            pair = self.random.choice(movable, 2, replace=False)
            found = ones.copy()
            found[pair] = self.random.choice(_FACTORS, 2)
            yield found

    def _rounded(self, values: Float64s) -> Float64s:
        own = self.totals.own
        grain = np.array([math.gcd(int(v), _GRAIN) for v in own], dtype=np.float64)
        near = np.clip(values, own / _MOST_FACTOR, own * _MOST_FACTOR)
        return np.where(self._may_move, np.maximum(np.round(near / grain), 1.0) * grain, own)

    def _miss(self, values: Float64s, aims: _Aims) -> Float64s:
        logs = self.totals.logs(values)
        found = np.zeros(len(values))
        for number, aim in aims.totals.items():
            found += (logs[:, number] - aim) ** 2
        if aims.memory is not None:
            found += (logs[:, self.totals.memory] - aims.memory) ** 2
        return found
