"""A captured program as steps: which template each row is of, and which earlier steps it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program, RegionKind, Row
from flint.ir.workload import Workload
from flint.tools.share.depth import depth_of
from flint.tools.share.synth.codec.lenders import Lenders
from flint.tools.share.synth.codec.scene import Scene, Symbols
from flint.tools.share.synth.codec.shapes import RULES
from flint.tools.share.synth.codec.shapes.parts import Parts, could_be
from flint.tools.share.synth.codec.shapes.rule import Read, Reading, Seen
from flint.tools.share.synth.codec.template import (
    CARRY,
    CLOSE,
    END,
    UNKNOWN,
    YIELD,
    StepKind,
    Template,
)
from flint.tools.share.synth.codec.value_type import ValueType
from flint.tools.share.synth.codec.work import convolution_sizes

#: Rows that read more than this are of no template.
MOST_OPERANDS = 8
#: Flags that say where a row came from rather than what it is.
_DROPPED = Flag.DOUBTFUL | Flag.PARTITIONED | Flag.LAUNCHED | Flag.REPLAYED | Flag.WAITS
_PARTS = Parts()


@dataclass
class Steps:
    """A program as a sequence. `operands[i]` are the steps that step i reads or borrows from, in the
    order of the slots of its template; `types[i]` is what it gives, None for steps without a value.

    `symbols` are the sizes that nothing earlier gave, in order.
    """

    scene: Scene
    templates: list[Template] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)
    types: list[ValueType | None] = field(default_factory=list)
    symbols: Symbols = field(default_factory=Symbols)
    _known: dict[Template, Template] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.templates)

    def add(
        self, template: Template, operands: Sequence[int] = (), type_: ValueType | None = None
    ) -> int:
        """Append a step; gives its number. Equal templates are kept as one object."""
        self.templates.append(self._known.setdefault(template, template))
        self.operands.append(tuple(operands))
        self.types.append(type_)
        return len(self.templates) - 1

    @property
    def unknown_share(self) -> float:
        """The share of rows that no rule explains."""
        rows = sum(t.step in (StepKind.ROW, StepKind.UNKNOWN) for t in self.templates)
        return self.templates.count(UNKNOWN) / max(rows, 1)


def is_readable(workload: Workload) -> bool:
    """Whether steps can say what a workload is: one program for all ranks, which nobody launched row by
    row, without branches, messages, and stages of pipelines."""
    if len(workload.programs) != 1:
        return False
    p = workload.programs[0]
    plain = not ((p.flags & Flag.LAUNCHED) != 0).any() and not (p.op == OpClass.TURN).any()
    loops = all(r.kind is RegionKind.LOOP for r in p.regions)
    return bool(len(p) and plain and loops and not (p.kind > Kind.COLLECTIVE).any())


def read_program(program: Program) -> Steps:
    """The steps of a program, of a workload that `is_readable`."""
    return _Reader(program).read()


class _Reader:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._steps = Steps(Scene(program.mesh, depth_of(program)))
        self._lenders = Lenders()
        self._at: dict[int, int] = {}
        self._changing = {a: a != b for r in program.regions for a, b in r.carries}

    def read(self) -> Steps:
        p, open_regions = self._program, [-1]
        for number in range(len(p)):
            region = int(p.region[number])
            while open_regions[-1] != region and not self._is_inside(region, open_regions[-1]):
                self._close(open_regions.pop())
            for inner in self._entered(region, open_regions[-1]):
                self._open(inner)
                open_regions.append(inner)
            row = p.row(number)
            if row.op is not OpClass.RESULT:
                self._add(row)
        for region in reversed(open_regions[1:]):
            self._close(region)
        self._steps.add(END)
        return self._steps

    def _is_inside(self, region: int, outer: int) -> bool:
        while region not in (outer, -1):
            region = self._program.regions[region].parent
        return region == outer

    def _entered(self, region: int, outer: int) -> list[int]:
        """Regions between, outer ones first."""
        found: list[int] = []
        while region != outer:
            found.append(region)
            region = self._program.regions[region].parent
        return found[::-1]

    def _open(self, number: int) -> None:
        region = self._program.regions[number]
        parts = self._steps_parts((region.trip_count,))
        flags = int(region.barrier)
        if parts is None:
            parts = (("number", region.trip_count),), ()
        arguments, pointers = parts
        template = Template(
            StepKind.OPEN,
            rule=_PARTS.name,
            arguments=arguments,
            pointers=len(pointers),
            flags=flags,
        )
        self._steps.add(template, pointers)

    def _close(self, number: int) -> None:
        for carried, produced in sorted(self._program.regions[number].carries):
            if carried != produced and carried in self._at and produced in self._at:
                self._steps.add(YIELD, (self._at[produced],))
        self._steps.add(CLOSE)

    def _steps_parts(
        self, shape: tuple[int, ...]
    ) -> tuple[tuple[tuple[str | int, ...], ...], tuple[int, ...]] | None:
        s = self._steps
        return _PARTS.parts_of(shape, self._lenders, s.scene, s.symbols)

    def _add(self, row: Row) -> None:
        """Append a row; what no rule explains is UNKNOWN, and still lends its shape."""
        type_ = ValueType(row.dtype, row.shape)
        template, operands = self._template(row, type_)
        step = self._steps.add(template, operands, type_)
        self._at[row.number] = step
        self._lenders.add(step, type_.shape)

    def _template(self, row: Row, type_: ValueType) -> tuple[Template, tuple[int, ...]]:
        reads = self._reads(row)
        group = self._group(row)
        if reads is None or group is None or type_.num_bytes == 0 and row.result_bytes:
            return UNKNOWN, ()
        axes, route, size = group
        seen = Seen(
            *(row.op, row.kind, row.collective, type_, row.result_bytes, reads, size, row.dims),
            self._steps.scene,
        )
        rule, reading = self._reading(seen, row, type_)
        if reading is None:
            return UNKNOWN, ()
        order = tuple(r.step for r in reading.order)
        operands = [r.type for r in reading.order]
        sizes = _sizes(row, operands, type_)
        if sizes is None:
            return UNKNOWN, ()
        template = Template(
            StepKind.ROW,
            opcode=row.opcode,
            op=row.op,
            kind=row.kind,
            collective=row.collective,
            axes=axes,
            route=route,
            dtype=row.dtype,
            phase=row.phase,
            flags=int(row.flags & ~_DROPPED),
            rule=rule,
            arguments=reading.arguments,
            arity=len(order),
            pointers=len(reading.pointers),
            alias=order.index(self._at[row.alias]) if self._at.get(row.alias) in order else -1,
            rate=_rate(row, operands, type_),
            product=row.product,
            sizes=sizes,
            several=_several(row, type_),
            changes=self._changing.get(row.number, False),
        )
        return template, (*order, *reading.pointers)

    def _reads(self, row: Row) -> tuple[Read, ...] | None:
        if len(row.deps) > MOST_OPERANDS:
            return None
        steps = [self._at[d] for d in reversed(row.deps) if d in self._at]
        types = [self._steps.types[s] for s in steps]
        found = [Read(s, t) for s, t in zip(steps, types, strict=True) if t is not None]
        return tuple(found) if len(found) == len(row.deps) else None

    def _group(self, row: Row) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Numbers of axes, of a route its offset, and the size; None for parts of axes and lists."""
        over = row.group or row.route
        if over is None:
            return (), (), 1
        names = self._program.mesh.names
        whole = all(a.size is None for a in over.axes) and bool(over.axes)
        if not whole or (row.group and row.group.is_listed) or (row.route and row.route.pairs):
            return None
        axes = tuple(names.index(a.name) for a in over.axes)
        route = (row.route.offset, int(row.route.wrap)) if row.route else ()
        return axes, route, self._steps.scene.group_size(axes)

    def _reading(self, seen: Seen, row: Row, type_: ValueType) -> tuple[str, Reading | None]:
        if row.kind is Kind.COLLECTIVE and not _sends_whole(row, seen):
            return "", None
        for rule in RULES:
            reading = rule.read(seen)
            if reading is not None:
                gathers = row.collective is Collective.ALL_GATHER and rule.name == "same"
                return ("", None) if gathers else (rule.name, reading)
        order = _by_role(seen)
        probe = Template(StepKind.ROW, op=row.op, kind=row.kind, dtype=row.dtype)
        operands = [r.type for r in order]
        sizes = _sizes(row, operands, type_)
        if sizes is None:
            return "", None
        if not could_be(_with_sizes(probe, sizes), operands, type_):
            return "", None
        parts = self._steps_parts(type_.shape)
        return (_PARTS.name, Reading(parts[0], order, parts[1])) if parts else ("", None)


def _with_sizes(probe: Template, sizes: tuple[int, ...]) -> Template:
    return Template(probe.step, op=probe.op, kind=probe.kind, dtype=probe.dtype, sizes=sizes)


def _by_role(seen: Seen) -> tuple[Read, ...]:
    """What is looked up in or copied from first, then what says where."""
    same = [r for r in seen.reads if r.type.dtype == seen.result.dtype and not r.type.is_index]
    large = sorted(same, key=lambda r: -r.type.elements)
    first = large[:1]
    return (*first, *(r for r in seen.reads if r not in first))


def _sizes(row: Row, operands: Sequence[ValueType], result: ValueType) -> tuple[int, ...] | None:
    if row.kind is not Kind.COMPUTE:
        return ()
    if row.op is OpClass.CONVOLUTION:
        return convolution_sizes(row.dims, operands, result)
    if row.op is OpClass.GATHER:
        rows = row.dims[1]
        if not rows or len(operands) != 2 or operands[1].elements % rows:
            return None
        return (operands[1].elements // rows,)
    return ()


def _rate(row: Row, operands: Sequence[ValueType], result: ValueType) -> int:
    if row.op in (OpClass.MATMUL, OpClass.CONVOLUTION) or not row.flops:
        return 0
    if row.op is OpClass.REDUCE:
        return max(row.flops // max(row.dims[1] * row.dims[3], 1), 1)
    per = operands[2].elements if row.op is OpClass.SCATTER else result.elements
    return max(row.flops // max(per, 1), 1)


def _several(row: Row, result: ValueType) -> int:
    if row.kind is not Kind.COMPUTE or row.result_bytes <= result.num_bytes or not result.num_bytes:
        return 100
    return row.result_bytes * 100 // result.num_bytes


def _sends_whole(row: Row, seen: Seen) -> bool:
    """Whether a collective sends one of its operands whole; borders of neighbours are parts."""
    is_part = row.collective is Collective.PERMUTE and row.result_bytes < seen.result.num_bytes
    return not is_part and len(seen.reads) == 1 and seen.reads[0].type.num_bytes == row.comm_bytes


__all__ = ["CARRY", "MOST_OPERANDS", "Steps", "is_readable", "read_program"]
