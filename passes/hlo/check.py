"""What a module has to be before it is walked: what it refers to is there, and of the right form.

It is XLA's verifier as far as Flint relies on it. Whatever is read of a module behind this check
is there: an exception is then a bug of Flint, never the fault of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flint.errors import FlintError, Malformed
from flint.ir.mesh import Mesh
from flint.passes.call_graph import check_call_graph
from flint.passes.hlo import shapes
from flint.passes.hlo.collectives import collective_kind, holds_collective
from flint.passes.hlo.module import Computation, HloModule, Instruction, started_shape
from flint.passes.hlo.operations import check_operation

#: The form of a value: a tuple of forms, or None for an array or a token.
Form = Any
#: Types of elements, and of values that are no arrays: xla.PrimitiveType.
_KNOWN = {*shapes.PRIMITIVES, shapes.TUPLE, shapes.BUFFER, shapes.OPAQUE, shapes.TOKEN}
#: Instructions that see a value differently.
VIEWS = frozenset(
    {"bitcast", "reshape", "bitcast-convert", "opt-barrier", "optimization-barrier", "domain"}
)
#: Instructions that run a computation in their own place, with their operands as its arguments.
_CALLS = ("call", "async-start")


def check_size(module: HloModule, mesh: Mesh) -> None:
    """Raise FlintError FL102 for a module that was compiled for another number of devices."""
    count = max(module.num_replicas, 1) * max(module.num_partitions, 1)
    if module.num_partitions and count != mesh.size:
        raise FlintError(
            "FL102",
            f"{module.source} was compiled for {count} devices, but the mesh {mesh} has {mesh.size}",
            help=f"give a mesh of {count} devices",
        )


def check_module(module: HloModule) -> None:
    """Raise Malformed for a module that contradicts itself, and FlintError FL303 for calls without end.

    The computations of branches, loops, fusions and reductions count as called too.
    """
    calls: dict[str, Counter[str]] = {}
    sizes: dict[str, int] = {}
    if len(module.computations) < len(module.proto.computations):
        raise Malformed("two of its computations have one id")
    for computation in module.computations.values():
        found = calls.setdefault(_name(computation), Counter())
        sizes[_name(computation)] = len(computation.instructions)
        for instruction in computation.instructions:
            _check_shape(instruction)
            found.update(map(_name, module.called(instruction)))
        _check_order(module, computation)
    check_call_graph(calls, sizes, "FL303", module.source)
    forms = {i: _Forms(module, c) for i, c in module.computations.items()}
    for of in forms.values():
        of.check(forms)


def _name(computation: Any) -> str:
    return f"{computation.name} ({computation.id})"


def _check_shape(instruction: Instruction) -> None:
    for shape in _parts(instruction.shape):
        if shape.element_type not in _KNOWN:
            raise Malformed(
                f"'{instruction.name}' has elements of type {shape.element_type}, "
                "which this Flint does not know"
            )
        if min(shape.dimensions, default=0) < 0:
            raise Malformed(f"'{instruction.name}' has a negative dimension")


def _parts(shape: Any) -> Iterator[Any]:
    yield shape
    for part in shape.tuple_shapes:
        yield from _parts(part)


def _check_order(module: HloModule, computation: Computation) -> None:
    """Each instruction is there once, and reads what comes before it, also as scheduled."""
    for order in (computation.instructions, module.in_order(computation)):
        before: set[int] = set()
        for i in order:
            missing = next((o for o in i.operand_ids if o not in before), None)
            if missing is not None:
                raise Malformed(f"'{i.name}' reads instruction {missing}, which is not before it")
            before.add(i.id)
        if len(before) < len(order):
            raise Malformed(f"two instructions of '{computation.name}' have one id")
    module.root(computation)


def form_of(shape: Any) -> Form:
    """The form of a shape."""
    if shape.element_type != shapes.TUPLE:
        return None
    return tuple(form_of(part) for part in shape.tuple_shapes)


class _Forms:
    """Forms of the values of a computation, as the walk makes them: arguments, results, elements."""

    def __init__(self, module: HloModule, computation: Computation) -> None:
        self._module, self._computation = module, computation
        self._forms: dict[int, Form] = {}
        given = [i for i in computation.instructions if i.opcode == "parameter"]
        numbers = sorted(i.parameter_number for i in given)
        if numbers != list(range(len(given))):
            raise Malformed(f"parameters of '{computation.name}' are numbered {numbers[:9]}")
        self.arguments = [
            form_of(i.shape) for i in sorted(given, key=lambda i: int(i.parameter_number))
        ]
        self.root = form_of(module.root(computation).shape)

    def check(self, forms: dict[int, _Forms]) -> None:
        """Raise Malformed for an instruction that does not fit what it reads, or what it calls."""
        for i in self._computation.instructions:
            operands = self._module.operands(self._computation, i)
            called = [forms[c] for c in i.called_computation_ids]
            try:
                check_operation(i, operands, len(called))
                self._forms[i.id] = self._form(i, [self._forms[o] for o in i.operand_ids], called)
            except Malformed as error:
                raise Malformed(f"'{i.name}' ({i.opcode}) {error}") from error

    def _form(self, i: Instruction, operands: Sequence[Form], called: Sequence[_Forms]) -> Form:
        own = form_of(i.shape)
        if i.opcode == "tuple":
            return _same(own, tuple(operands), "is not what it is made of")
        if i.opcode == "get-tuple-element":
            whole = operands[0]
            if not isinstance(whole, tuple) or not 0 <= i.tuple_index < len(whole):
                raise Malformed(f"takes element {i.tuple_index} of what has no such element")
            return _same(own, whole[i.tuple_index], "is not the element that it takes")
        if i.opcode in VIEWS and own is not None:
            return _same(own, operands[0], "sees a tuple as another")
        if i.opcode == "while":
            body, condition = called[:2]
            for form in (body.root, *body.arguments, *condition.arguments, operands[0]):
                _same(own, form, "does not carry what its computations take and give")
            _same(len(body.arguments), 1, "has a body of several parameters")
            return own
        if i.opcode == "conditional":
            _same(len(operands), len(called) + 1, "has not an operand for each branch")
            for branch, operand in zip(called, operands[1:], strict=True):
                _same(branch.arguments, [operand], "has a branch that takes something else")
                _same(branch.root, own, "has branches that give something else")
            return own
        if i.opcode in _CALLS or (i.opcode == "fusion" and holds_collective(i, self._module)):
            _same(called[0].arguments, list(operands), "calls what takes something else")
            whole = called[0].root
            return whole if i.opcode == "async-start" else _same(own, whole, "gives something else")
        if i.opcode == "fusion":
            _same(len(called[0].arguments), len(operands), "fuses what takes something else")
            return own
        if i.opcode == "async-update":
            return operands[0]
        if i.opcode.endswith("-done"):
            of_message = i.opcode in ("send-done", "recv-done")
            return own if of_message else _same(own, operands[0], "is not what was started")
        if i.opcode.endswith("-start") or collective_kind(i.opcode):
            return form_of(started_shape(i))
        return own


def _same(found: Any, needed: Any, what: str) -> Any:
    if found != needed:
        raise Malformed(what)
    return found
