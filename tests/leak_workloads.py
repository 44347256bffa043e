"""Workloads without any name of their own, for tests of the leak report."""

from __future__ import annotations

from dataclasses import replace

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from tests.program_rows import ProgramBuilder

MESH = Mesh(("axis0", "axis1"), (2, 4))


def small_program(mesh: Mesh = MESH, layers: int = 3, width: int = 8) -> Program:
    """A chain of products, each all-reduced, and a message; without names."""
    builder = ProgramBuilder(mesh)
    size = 4 * width * width
    typed = {"dtype": "f32", "shape": (width, width), "result_bytes": size}
    value = builder.add("parameter", Kind.PARAMETER, **typed)
    for _ in range(layers):
        value = builder.add(
            "stablehlo.dot_general",
            deps=[value],
            dims=(1, width, width, width),
            flops=2 * width**3,
            operand_bytes=size,
            **typed,
        )
        value = builder.add(
            "sdy.all_reduce",
            Kind.COLLECTIVE,
            deps=[value],
            collective=Collective.ALL_REDUCE,
            group=Group((AxisRef(mesh.names[-1]),)),
            comm_bytes=size,
            operand_bytes=size,
            **typed,
        )
    builder.add(
        "stablehlo.collective_permute",
        Kind.COLLECTIVE,
        deps=[value],
        collective=Collective.PERMUTE,
        route=Route((AxisRef(mesh.names[0]),), 1),
        comm_bytes=size,
        operand_bytes=size,
        **typed,
    )
    return builder.build()


def looped_program(mesh: Mesh = MESH) -> Program:
    """A loop of two rows, without names."""
    builder = ProgramBuilder(mesh)
    typed = {"dtype": "f32", "shape": (8,), "result_bytes": 32}
    first = builder.add("parameter", Kind.PARAMETER, **typed)
    builder.begin_region(RegionKind.LOOP, 4)
    carried = builder.add("while.carry", Kind.VALUE, deps=[first], **typed)
    added = builder.add("stablehlo.add", deps=[carried], flops=8, operand_bytes=64, **typed)
    builder.end_region([(carried, added)])
    return builder.build()


def neutral_workload() -> Workload:
    """Two programs, two classes of ranks, metadata: all in generated or public words."""
    classes = (
        RankClass("class0", 0, {"axis0": (0,)}),
        RankClass("class1", 1, {"axis0": (1,)}),
    )
    metadata = {"producer": "flint", "name": "workload0", "pipeline": {"schedule": "1f1b"}}
    return Workload(MESH, (small_program(), looped_program()), classes, metadata)


def renamed(workload: Workload, axes: tuple[str, ...]) -> Workload:
    """The same with other axis names, and names in every string of its programs."""
    names = dict(zip(workload.mesh.names, axes, strict=True))
    mesh = Mesh(axes, workload.mesh.sizes)
    programs = tuple(_renamed(p, mesh, names) for p in workload.programs)
    classes = tuple(
        replace(c, name=f"{c.name} acme", where={names[a]: at for a, at in c.where.items()})
        for c in workload.classes
    )
    return replace(workload, mesh=mesh, programs=programs, classes=classes, metadata={})


def _renamed(program: Program, mesh: Mesh, names: dict[str, str]) -> Program:
    def axes(refs: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
        return tuple(replace(a, name=names[a.name]) for a in refs)

    return program.with_rows(
        mesh=mesh,
        opcodes=tuple(f"acme.{o}" for o in program.opcodes),
        strings=tuple(f"{s}/acme/{i}" if s else s for i, s in enumerate(program.strings)),
        groups=tuple(replace(g, axes=axes(g.axes)) for g in program.groups),
        routes=tuple(replace(r, axes=axes(r.axes)) for r in program.routes),
        regions=tuple(replace(r, name="acme", location="acme.py:3") for r in program.regions),
    )
