"""Steps as a program: shapes by their rules, bytes and work by Flint's formulas, loops with what they carry."""

from __future__ import annotations

from collections.abc import Sequence

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Phase, Program, RegionKind
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes import RULE_NAMED
from flint.tools.share.synth.codec.shapes.parts import Parts
from flint.tools.share.synth.codec.template import StepKind, Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType
from flint.tools.share.synth.codec.work import cost_of

_PARTS = Parts()


def shape_of(
    t: Template, chosen: Sequence[ValueType], scene: Scene, sizes: Sequence[int]
) -> Shape | None:
    """The shape of a row's result; `sizes` are the new ones that its rule needs."""
    rule = RULE_NAMED[t.rule]
    if isinstance(rule, Parts):
        return rule.shape_with(t, chosen, scene, sizes)
    return rule.shape(t, chosen, scene)


def retyped(steps: Steps, scene: Scene, symbols: Sequence[int]) -> Steps | None:
    """The same steps with other sizes; None where a rule cannot follow (a part that does not divide).

    `symbols` stand in for `steps.symbols`, in the same order.
    """
    found = Steps(scene)
    left = iter(symbols)
    for template, operands in zip(steps.templates, steps.operands, strict=True):
        type_ = None
        if template.step is StepKind.ROW:
            sizes = [next(left) for _ in new_sizes(template)]
            chosen = [found.types[o] for o in operands]
            shape = shape_of(template, [c for c in chosen if c is not None], scene, sizes)
            if shape is None:
                return None
            type_ = ValueType(template.dtype, shape)
            found.symbols.taken.extend(sizes)
        elif template.step is StepKind.OPEN:
            found.symbols.taken.extend(next(left) for _ in new_sizes(template))
        found.add(template, operands, type_)
    return found


def new_sizes(t: Template) -> tuple[int, ...]:
    """Octaves of the sizes that a template takes from nothing earlier."""
    return _PARTS.octaves(t) if t.rule == _PARTS.name else ()


def write_program(steps: Steps) -> Program:
    """The program of steps, all of whose types are known."""
    return _Writer(steps).write()


class _Writer:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._mesh: Mesh = steps.scene.mesh
        self._builder = ProgramBuilder(self._mesh)
        self._row: dict[int, int] = {}
        self._carries: list[list[list[int]]] = []
        self._symbols = iter(steps.symbols.taken)
        self._arguments = 0

    def write(self) -> Program:
        s = self._steps
        for step, (template, operands) in enumerate(zip(s.templates, s.operands, strict=True)):
            if template.step is StepKind.ROW:
                self._add(step, template, operands)
            elif template.step is StepKind.OPEN:
                self._open(template, operands)
            elif template.step is StepKind.YIELD:
                self._yield(self._row[operands[0]])
            elif template.step is StepKind.CLOSE:
                self._builder.end_region([(a, b) for a, b, _ in self._carries.pop()])
        self._return()
        return self._builder_program()

    def _builder_program(self) -> Program:
        return self._builder.build()

    def _open(self, t: Template, operands: Sequence[int]) -> None:
        sizes = [next(self._symbols) for _ in new_sizes(t)]
        chosen = [self._steps.types[o] for o in operands]
        trips = trip_count(t, [c for c in chosen if c is not None], self._steps.scene, sizes)
        self._builder.begin_region(RegionKind.LOOP, trips, barrier=bool(t.flags))
        self._carries.append([])

    def _yield(self, produced: int) -> None:
        """The next value that changes goes on as this row."""
        pending = next(c for c in self._carries[-1] if c[2])
        pending[1:] = [produced, 0]

    def _add(self, step: int, t: Template, operands: Sequence[int]) -> None:
        type_ = self._steps.types[step]
        assert type_ is not None, "a row without a type"
        for _ in new_sizes(t):
            next(self._symbols)
        types = [self._steps.types[o] for o in operands[: t.arity]]
        cost = cost_of(t, [c for c in types if c is not None], type_)
        over = tuple(AxisRef(self._mesh.names[a]) for a in t.axes)
        row = self._builder.add(
            t.opcode,
            t.kind,
            op=t.op,
            deps=[self._row[o] for o in operands[: t.arity]],
            dtype=type_.dtype,
            shape=type_.shape,
            result_bytes=cost.result_bytes,
            operand_bytes=cost.operand_bytes,
            flops=cost.flops,
            dims=cost.dims,
            product=t.product,
            collective=t.collective,
            group=Group(over) if over and not t.route else None,
            route=Route(over, t.route[0], bool(t.route[1])) if t.route else None,
            comm_bytes=cost.comm_bytes,
            name=self._name(t),
            phase=t.phase,
            flags=t.flags,
            alias=self._row[operands[t.alias]] if t.alias >= 0 else -1,
        )
        self._row[step] = row
        if t.is_carry and self._carries:
            self._carries[-1].append([row, row, int(t.changes)])

    def _name(self, t: Template) -> str:
        """Arguments by what reads them, as redacted workloads name them."""
        if t.kind is not Kind.PARAMETER:
            return ""
        self._arguments += 1
        return f"argument{int(t.phase)}[{self._arguments}]"

    def _return(self) -> None:
        """What is computed outside of loops and not read is what the step returns."""
        read = {o for t, os in _reads(self._steps) for o in os[: t.arity]}
        depth = 0
        left = []
        for step, t in enumerate(self._steps.templates):
            depth += (t.step is StepKind.OPEN) - (t.step is StepKind.CLOSE)
            works = t.step is StepKind.ROW and t.kind in (Kind.COMPUTE, Kind.COLLECTIVE)
            if works and depth == 0 and step not in read:
                left.append(self._row[step])
        phase = Phase.OPTIMIZER if self._is_training else Phase.FORWARD
        if left:
            self._builder.add("func.return", Kind.VALUE, op=OpClass.RESULT, deps=left, phase=phase)

    @property
    def _is_training(self) -> bool:
        return any(t.phase is Phase.OPTIMIZER for t in self._steps.templates)


def _reads(steps: Steps) -> list[tuple[Template, tuple[int, ...]]]:
    pairs = zip(steps.templates, steps.operands, strict=True)
    return [(t, o) for t, o in pairs if t.step in (StepKind.ROW, StepKind.YIELD)]


def trip_count(
    t: Template, lenders: Sequence[ValueType], scene: Scene, sizes: Sequence[int]
) -> int:
    """How often a loop runs, at least once; its template has one part."""
    part = t.arguments[0]
    if part[0] == "number":
        return int(part[1])
    if part[0] == "run":
        return max(lenders[0].shape[int(part[2])], 1)
    if part[0] == "depth":
        return scene.depth
    if part[0] == "axis":
        return scene.group_size((int(part[1]),))
    return sizes[0] if part[0] == "size" else 1
