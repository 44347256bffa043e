"""Hypothesis strategies for meshes, axis sets and valid Programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from tests.program_rows import ProgramBuilder

#: No limits of time: a loaded machine must not fail a test.
QUICK = settings(max_examples=60)

Draw = Callable[[st.SearchStrategy], object]

ELEMENTWISE = ("stablehlo.add", "stablehlo.add", "stablehlo.multiply", "stablehlo.convert")
LAYOUTS = ("stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.reshape")
OPAQUE = ("stablehlo.custom_call", "stablehlo.sort", "stablehlo.gather")
COLLECTIVES = {
    Collective.ALL_REDUCE: "sdy.all_reduce",
    Collective.ALL_GATHER: "sdy.all_gather",
    Collective.REDUCE_SCATTER: "sdy.reduce_scatter",
    Collective.ALL_TO_ALL: "sdy.all_to_all",
    Collective.BROADCAST: "stablehlo.collective_broadcast",
}
SHAPES = ((8,), (4, 8), (16, 4))
DTYPES = {"f32": 4, "bf16": 2}


def meshes(min_size: int = 1) -> st.SearchStrategy[Mesh]:
    """Meshes of one to four axes and at most 512 devices."""
    sizes = st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=1, max_size=4)
    return sizes.filter(lambda s: min_size <= math.prod(s) <= 512).map(
        lambda s: Mesh(("data", "model", "pipe", "expert")[: len(s)], tuple(s))
    )


@st.composite
def axis_sets(draw: Draw, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Axes and sub-axes of `mesh` that do not overlap; possibly none."""
    chosen: list[AxisRef] = []
    for name, size in mesh.shape.items():
        parts = draw(st.sampled_from(_splits(name, size)))
        chosen += [ref for ref in parts if draw(st.booleans())]
    return tuple(chosen)


def _splits(name: str, size: int) -> list[tuple[AxisRef, ...]]:
    """The axis whole, and cut into two and three factors."""
    found: list[tuple[AxisRef, ...]] = [(AxisRef(name),)]
    for a in (d for d in range(2, size) if size % d == 0):
        found.append((AxisRef(name, 1, a), AxisRef(name, a, size // a)))
        for b in (d for d in range(2, size // a) if (size // a) % d == 0):
            c = size // a // b
            found.append((AxisRef(name, 1, a), AxisRef(name, a, b), AxisRef(name, a * b, c)))
    return found


@st.composite
def groups(draw: Draw, mesh: Mesh) -> Group:
    """A group of two or more: by axes mostly, by lists of ranks sometimes."""
    if draw(st.integers(0, 9)) == 0:
        ranks = draw(st.permutations(range(mesh.size)))
        cut = draw(st.sampled_from([d for d in range(2, mesh.size + 1) if mesh.size % d == 0]))
        lists = [tuple(ranks[i : i + cut]) for i in range(0, mesh.size, cut)]
        return Group(ranks=tuple(lists))
    axes = mesh.canonical(draw(axis_sets(mesh)))
    return Group(axes or mesh.canonical(map(AxisRef, mesh.names)))


@st.composite
def routes(draw: Draw, mesh: Mesh) -> Route:
    """A shift along axes or over all ranks, or explicit pairs (each position at most once)."""
    axes = mesh.canonical(draw(axis_sets(mesh)))
    n = mesh.group_size(axes) if axes else mesh.size
    if draw(st.booleans()):
        return Route(axes, draw(st.integers(-n, n)), draw(st.booleans()))
    count = draw(st.integers(1, min(n, 6)))
    positions = st.lists(st.integers(0, n - 1), min_size=count, max_size=count, unique=True)
    return Route(axes, pairs=tuple(zip(draw(positions), draw(positions), strict=True)))


@st.composite
def programs(draw: Draw, mesh: Mesh | None = None, max_rows: int = 25) -> Program:
    """A valid Program: nested loops and branches, every kind of row, results at the end."""
    mesh = mesh or draw(meshes())
    state = _State(draw, mesh, ProgramBuilder(mesh), draw(st.integers(1, max_rows)))
    if mesh.size > 1:
        state.pool = [
            *draw(st.lists(groups(mesh), min_size=1, max_size=2)),
            Group(mesh.canonical(map(AxisRef, mesh.names))),
        ]
    for i in range(draw(st.integers(0, 3))):
        state.parameter(i)
    state.body(depth=0)
    if draw(st.integers(0, 3)):
        reads = draw(st.sets(st.integers(0, len(state.builder) - 1), max_size=3))
        state.builder.add("flint.result", Kind.VALUE, deps=reads)
    return state.builder.build()


@dataclass
class _State:
    draw: Draw
    mesh: Mesh
    builder: ProgramBuilder
    budget: int
    pool: list[Group] = field(default_factory=list)
    channel: int = 0

    def parameter(self, number: int) -> None:
        shape, dtype, size = self._type()
        flags = self.draw(st.sampled_from((Flag(0), Flag.DONATED)))
        name = f"params['w{number}']"
        self.builder.add(
            "func.argument",
            Kind.PARAMETER,
            dtype=dtype,
            shape=shape,
            result_bytes=size,
            name=name,
            flags=flags,
        )

    def body(self, depth: int) -> None:
        actions = [self.element, self.element, self.layout, self.matmul, self.reduction]
        actions += [self.opaque, self.constant]
        if self.mesh.size > 1:
            actions += [self.collective, self.sum_of_reduces, self.sliced_reduce, self.permute]
            actions += [self.messages]
        if depth < 3:
            actions += [lambda: self.loop(depth), lambda: self.branches(depth)]
        for _ in range(self.draw(st.integers(1, 4 if depth else 12))):
            if self.budget <= 0:
                return
            self.draw(st.sampled_from(actions))()

    def element(self) -> None:
        shape, dtype, size = self._type()
        deps = self._deps(3)
        opcode = self.draw(st.sampled_from(ELEMENTWISE))
        self._add(
            opcode,
            deps=deps,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=size * len(deps),
            flops=0 if opcode == "stablehlo.convert" else math.prod(shape),
        )

    def layout(self) -> None:
        shape, dtype, size = self._type()
        kind = self.draw(st.sampled_from((Kind.COMPUTE, Kind.VALUE)))
        flags = Flag.VIEW if kind is Kind.VALUE else Flag(0)
        deps = self._deps(1)
        self._add(
            self.draw(st.sampled_from(LAYOUTS)),
            kind,
            deps=deps,
            alias=deps[0] if deps and kind is Kind.VALUE else -1,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=size,
            flags=flags,
        )

    def matmul(self) -> None:
        b, m, n, k = self.draw(st.sampled_from(((1, 4, 8, 2), (1, 8, 1, 4), (4, 8, 8, 1))))
        self._add(
            self.draw(st.sampled_from(("stablehlo.dot_general", "stablehlo.convolution"))),
            deps=self._deps(2),
            shape=(b * m, n),
            dtype="f32",
            dims=(b, m, n, k),
            flops=2 * b * m * n * k,
            result_bytes=4 * b * m * n,
            operand_bytes=4 * b * (m + n) * k,
        )

    def reduction(self) -> None:
        self._add(
            "stablehlo.reduce",
            deps=self._deps(2),
            shape=(8,),
            dtype="f32",
            dims=(1, 8, 1, 4),
            flops=32,
            result_bytes=32,
            operand_bytes=128,
        )

    def opaque(self) -> None:
        shape, dtype, size = self._type()
        deps = self._deps(3)
        flags = self.draw(st.sampled_from((Flag(0), Flag.UNPRICED, Flag.IN_PLACE)))
        self._add(
            self.draw(st.sampled_from(OPAQUE)),
            deps=deps,
            alias=deps[0] if deps and flags is Flag.IN_PLACE else -1,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=self.draw(st.integers(0, 1 << 40)),
            flops=self.draw(st.integers(0, 1 << 55)),
            flags=flags,
        )

    def constant(self) -> None:
        shape, dtype, size = self._type()
        self._add("stablehlo.constant", Kind.VALUE, shape=shape, dtype=dtype, result_bytes=size)

    def collective(self) -> None:
        shape, dtype, size = self._type()
        kind = self.draw(st.sampled_from(list(COLLECTIVES)))
        self._communicate(COLLECTIVES[kind], kind, self._group(), self._deps(2), shape, dtype, size)

    def sum_of_reduces(self) -> None:
        """A chain add(all-reduce, add(all-reduce, ...)), which reassociation looks for."""
        (shape, dtype, size), group = self._type(), self._group()
        total = -1
        for _ in range(self.draw(st.integers(2, 4))):
            reduced = self._all_reduce(group, shape, dtype, size)
            if total < 0:
                total = reduced
                continue
            total = self._add(
                "stablehlo.add",
                deps=(total, reduced),
                shape=shape,
                dtype=dtype,
                result_bytes=size,
                operand_bytes=2 * size,
                flops=math.prod(shape),
            )

    def sliced_reduce(self) -> None:
        """all_slice(all-reduce), over the same axes or others."""
        (shape, dtype, size), group = self._type(), self._group()
        reduced = self._all_reduce(group, shape, dtype, size)
        other = self.draw(axis_sets(self.mesh))
        part = [ref for whole in group.axes for ref in self._factors(whole)]
        chosen = self.draw(st.sampled_from((group.axes, part[:1], part[-1:], other)))
        axes = self.mesh.canonical(chosen)
        if not axes:
            return
        self._add(
            "sdy.all_slice",
            self.draw(st.sampled_from((Kind.COMPUTE, Kind.VALUE))),
            deps=(reduced,),
            group=Group(axes),
            shape=shape,
            dtype=dtype,
            result_bytes=2,
            operand_bytes=2,
        )

    def _factors(self, ref: AxisRef) -> tuple[AxisRef, ...]:
        """`ref` as one to three parts of it."""
        parts = self.draw(st.sampled_from(_splits(ref.name, self.mesh.axis_size(ref))))
        sized = (
            (p.pre_size, self.mesh.axis_size(ref) if p.size is None else p.size) for p in parts
        )
        return tuple(AxisRef(ref.name, ref.pre_size * pre, size) for pre, size in sized)

    def permute(self) -> None:
        shape, dtype, size = self._type()
        self._add(
            "sdy.collective_permute",
            Kind.COLLECTIVE,
            deps=self._deps(1),
            collective=Collective.PERMUTE,
            route=self.draw(routes(self.mesh)),
            comm_bytes=size,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=size,
            stream="permutes",
        )

    def messages(self) -> None:
        """The two ends of a message, as both ranks of a class see them."""
        shape, dtype, size = self._type()
        route, self.channel = self.draw(routes(self.mesh)), self.channel + 1
        for kind in (Kind.SEND, Kind.RECV):
            self._add(
                f"stablehlo.{kind.name.lower()}",
                kind,
                deps=self._deps(1) if kind is Kind.SEND else (),
                route=route,
                channel=self.channel,
                comm_bytes=size,
                shape=shape,
                dtype=dtype,
                result_bytes=size,
            )

    def loop(self, depth: int) -> None:
        shape, dtype, size = self._type()
        initial = [self._deps(1) for _ in range(self.draw(st.integers(0, 2)))]
        trips = self.draw(st.sampled_from((0, 1, 3, 80)))
        self.builder.begin_region(RegionKind.LOOP, trips, name=f"while{depth}")
        carried = [
            self._add(
                "flint.carried", Kind.VALUE, deps=d, shape=shape, dtype=dtype, result_bytes=size
            )
            for d in initial
        ]
        first = len(self.builder)
        self.body(depth + 1)
        last = max(len(self.builder) - 1, first - len(carried))
        low = min(first, last)
        carries = [(c, self.draw(st.integers(low, last))) for c in carried]
        self.builder.end_region(carries)

    def branches(self, depth: int) -> None:
        choice = len(self.builder)
        for taken in (1, 0):
            self.builder.begin_region(RegionKind.BRANCH, taken, name="case", choice=choice)
            self.body(depth + 1)
            self.builder.end_region()

    def _all_reduce(self, group: Group, shape: tuple[int, ...], dtype: str, size: int) -> int:
        kind = Collective.ALL_REDUCE
        deps = self._deps(1)
        return self._communicate("sdy.all_reduce", kind, group, deps, shape, dtype, size)

    def _communicate(
        self,
        opcode: str,
        kind: Collective,
        group: Group,
        deps: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: str,
        size: int,
    ) -> int:
        return self._add(
            opcode,
            Kind.COLLECTIVE,
            deps=deps,
            collective=kind,
            group=group,
            comm_bytes=size,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=size,
            cause="contracting dimension",
            flags=self.draw(st.sampled_from((Flag(0), Flag.ASYNC))),
        )

    def _add(self, opcode: str, kind: Kind = Kind.COMPUTE, **columns: object) -> int:
        self.budget -= 1
        phase = self.draw(st.sampled_from((Phase.FORWARD, Phase.BACKWARD)))
        scope = self.draw(st.sampled_from(("", "layers/attention")))
        return self.builder.add(
            opcode, kind, phase=phase, scope=scope, location="model.py:41", **columns
        )

    def _group(self) -> Group:
        return self.draw(st.sampled_from(self.pool))

    def _type(self) -> tuple[tuple[int, ...], str, int]:
        shape = self.draw(st.sampled_from(SHAPES))
        dtype = self.draw(st.sampled_from(tuple(DTYPES)))
        return shape, dtype, math.prod(shape) * DTYPES[dtype]

    def _deps(self, most: int) -> tuple[int, ...]:
        """Up to `most` earlier rows, the last few mostly, so that chains form."""
        n = len(self.builder)
        if not n:
            return ()
        near = st.integers(max(0, n - 4), n - 1)
        picks = st.lists(near | st.integers(0, n - 1), max_size=most)
        return tuple(self.draw(picks))
