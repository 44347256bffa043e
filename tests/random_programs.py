"""Hypothesis strategies for meshes, axis sets and valid Programs.

Of a program hypothesis draws one number, the seed: to draw each choice took three quarters of the time
of the tests. The profile `explore` draws each choice, and shrinks what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from tests.program_rows import ProgramBuilder

#: No limits of time: a loaded machine must not fail a test.
QUICK = settings(max_examples=30)

T = TypeVar("T")

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


def chosen(make: Callable[[Random], T]) -> st.SearchStrategy[T]:
    """What `make` makes of random choices."""
    if settings.get_current_profile_name() == "explore":
        return st.randoms(use_true_random=False).map(make)
    return st.integers(0, 2**64 - 1).map(lambda seed: make(Random(seed)))


def meshes() -> st.SearchStrategy[Mesh]:
    """Meshes of one to four axes and at most 512 devices."""
    return chosen(_mesh)


def _mesh(random: Random) -> Mesh:
    while True:
        sizes = [random.choice((1, 2, 3, 4, 6, 8)) for _ in range(random.randint(1, 4))]
        if math.prod(sizes) <= 512:
            return Mesh(("data", "model", "pipe", "expert")[: len(sizes)], tuple(sizes))


def axis_sets(mesh: Mesh) -> st.SearchStrategy[tuple[AxisRef, ...]]:
    """Axes and sub-axes of `mesh` that do not overlap; possibly none."""
    return chosen(lambda random: _axes(random, mesh))


def _axes(random: Random, mesh: Mesh) -> tuple[AxisRef, ...]:
    found: list[AxisRef] = []
    for name, size in mesh.shape.items():
        parts = random.choice(_splits(name, size))
        found += [ref for ref in parts if random.randint(0, 1)]
    return tuple(found)


@cache
def _splits(name: str, size: int) -> list[tuple[AxisRef, ...]]:
    """The axis whole, and cut into two and three factors."""
    found: list[tuple[AxisRef, ...]] = [(AxisRef(name),)]
    for a in (d for d in range(2, size) if size % d == 0):
        found.append((AxisRef(name, 1, a), AxisRef(name, a, size // a)))
        for b in (d for d in range(2, size // a) if (size // a) % d == 0):
            c = size // a // b
            found.append((AxisRef(name, 1, a), AxisRef(name, a, b), AxisRef(name, a * b, c)))
    return found


def _group(random: Random, mesh: Mesh) -> Group:
    """A group of two or more: by axes mostly, by lists of ranks sometimes."""
    if random.randint(0, 9) == 0:
        ranks = random.sample(range(mesh.size), mesh.size)
        cut = random.choice([d for d in range(2, mesh.size + 1) if mesh.size % d == 0])
        lists = [tuple(ranks[i : i + cut]) for i in range(0, mesh.size, cut)]
        return Group(ranks=tuple(lists))
    axes = mesh.canonical(_axes(random, mesh))
    return Group(axes or mesh.canonical(map(AxisRef, mesh.names)))


def routes(mesh: Mesh) -> st.SearchStrategy[Route]:
    """A shift along axes or over all ranks, or explicit pairs (each position at most once)."""
    return chosen(lambda random: _route(random, mesh))


def _route(random: Random, mesh: Mesh) -> Route:
    axes = mesh.canonical(_axes(random, mesh))
    n = mesh.group_size(axes) if axes else mesh.size
    if random.randint(0, 1):
        return Route(axes, random.randint(-n, n), bool(random.randint(0, 1)))
    count = random.randint(1, min(n, 6))
    ends = (random.sample(range(n), count) for _ in range(2))
    return Route(axes, pairs=tuple(zip(*ends, strict=True)))


def programs(mesh: Mesh | None = None, max_rows: int = 25) -> st.SearchStrategy[Program]:
    """A valid Program: nested loops and branches, every kind of row, results at the end."""
    return chosen(lambda random: _program(random, mesh or _mesh(random), max_rows))


def _program(random: Random, mesh: Mesh, max_rows: int) -> Program:
    state = _State(random, mesh, ProgramBuilder(mesh), random.randint(1, max_rows))
    if mesh.size > 1:
        state.pool = [
            *(_group(random, mesh) for _ in range(random.randint(1, 2))),
            Group(mesh.canonical(map(AxisRef, mesh.names))),
        ]
    for i in range(random.randint(0, 3)):
        state.parameter(i)
    state.body(depth=0)
    rows = len(state.builder)
    if random.randint(0, 3):
        reads = sorted(random.sample(range(rows), min(rows, random.randint(0, 3))))
        state.builder.add("flint.result", Kind.VALUE, deps=reads)
    return state.builder.build()


@dataclass
class _State:
    random: Random
    mesh: Mesh
    builder: ProgramBuilder
    budget: int
    pool: list[Group] = field(default_factory=list)
    channel: int = 0

    def parameter(self, number: int) -> None:
        shape, dtype, size = self._type()
        flags = self.random.choice((Flag(0), Flag.DONATED))
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
        for _ in range(self.random.randint(1, 4 if depth else 12)):
            if self.budget <= 0:
                return
            self.random.choice(actions)()

    def element(self) -> None:
        shape, dtype, size = self._type()
        deps = self._deps(3)
        opcode = self.random.choice(ELEMENTWISE)
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
        kind = self.random.choice((Kind.COMPUTE, Kind.VALUE))
        flags = Flag.VIEW if kind is Kind.VALUE else Flag(0)
        deps = self._deps(1)
        self._add(
            self.random.choice(LAYOUTS),
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
        b, m, n, k = self.random.choice(((1, 4, 8, 2), (1, 8, 1, 4), (4, 8, 8, 1)))
        self._add(
            self.random.choice(("stablehlo.dot_general", "stablehlo.convolution")),
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
        flags = self.random.choice((Flag(0), Flag.UNPRICED, Flag.IN_PLACE))
        self._add(
            self.random.choice(OPAQUE),
            deps=deps,
            alias=deps[0] if deps and flags is Flag.IN_PLACE else -1,
            shape=shape,
            dtype=dtype,
            result_bytes=size,
            operand_bytes=self.random.randint(0, 1 << self.random.randint(0, 40)),
            flops=self.random.randint(0, 1 << self.random.randint(0, 55)),
            flags=flags,
        )

    def constant(self) -> None:
        shape, dtype, size = self._type()
        self._add("stablehlo.constant", Kind.VALUE, shape=shape, dtype=dtype, result_bytes=size)

    def collective(self) -> None:
        shape, dtype, size = self._type()
        kind = self.random.choice(list(COLLECTIVES))
        self._communicate(COLLECTIVES[kind], kind, self._group(), self._deps(2), shape, dtype, size)

    def sum_of_reduces(self) -> None:
        """A chain add(all-reduce, add(all-reduce, ...)), which reassociation looks for."""
        (shape, dtype, size), group = self._type(), self._group()
        total = -1
        for _ in range(self.random.randint(2, 4)):
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
        other = _axes(self.random, self.mesh)
        part = [ref for whole in group.axes for ref in self._factors(whole)]
        chosen = self.random.choice((group.axes, part[:1], part[-1:], other))
        axes = self.mesh.canonical(chosen)
        if not axes:
            return
        self._add(
            "sdy.all_slice",
            self.random.choice((Kind.COMPUTE, Kind.VALUE)),
            deps=(reduced,),
            group=Group(axes),
            shape=shape,
            dtype=dtype,
            result_bytes=2,
            operand_bytes=2,
        )

    def _factors(self, ref: AxisRef) -> tuple[AxisRef, ...]:
        """`ref` as one to three parts of it."""
        parts = self.random.choice(_splits(ref.name, self.mesh.axis_size(ref)))
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
            route=_route(self.random, self.mesh),
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
        route, self.channel = _route(self.random, self.mesh), self.channel + 1
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
        initial = [self._deps(1) for _ in range(self.random.randint(0, 2))]
        trips = self.random.choice((0, 1, 3, 80))
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
        carries = [(c, self.random.randint(low, last)) for c in carried]
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
            flags=self.random.choice((Flag(0), Flag.ASYNC)),
        )

    def _add(self, opcode: str, kind: Kind = Kind.COMPUTE, **columns: object) -> int:
        self.budget -= 1
        phase = self.random.choice((Phase.FORWARD, Phase.BACKWARD))
        scope = self.random.choice(("", "layers/attention"))
        return self.builder.add(
            opcode, kind, phase=phase, scope=scope, location="model.py:41", **columns
        )

    def _group(self) -> Group:
        return self.random.choice(self.pool)

    def _type(self) -> tuple[tuple[int, ...], str, int]:
        shape = self.random.choice(SHAPES)
        dtype = self.random.choice(tuple(DTYPES))
        return shape, dtype, math.prod(shape) * DTYPES[dtype]

    def _deps(self, most: int) -> tuple[int, ...]:
        """Up to `most` earlier rows, the last few mostly, so that chains form."""
        n = len(self.builder)
        if not n:
            return ()
        first = (0, max(0, n - 4))
        count = self.random.randint(0, most)
        return tuple(self.random.randint(self.random.choice(first), n - 1) for _ in range(count))
