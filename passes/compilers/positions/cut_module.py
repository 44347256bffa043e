"""The joint function of a stage, as StableHLO, cut into its forward and its backward pass.

A compiler mixes what is in one module: it fuses a forward and a backward operation into one kernel,
joins their collectives, and runs loops of both. A pipeline needs them apart, so they are two modules
before it sees them: what the forward pass computes and the backward pass reads is a result of the one
and an argument of the other. Operations of `main` are whole: calls and loops go to one of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from flint.errors import FlintError
from flint.ir.program import Phase
from flint.passes.locations import Locations, split_name_stack
from flint.passes.mlir import element_bits, functions_of, make_context, write_bytecode
from flint.passes.partition.prepare.inline import inline_calls
from flint.steps.captured import Body, Role

#: A value of `main`: operation and number of its result; operation -1 is an argument.
Value = tuple[int, int]
_ARGUMENTS: Final = -1
_FORWARD_RESULTS: Final = (Role.OUTPUT, Role.LOSS, Role.PARAMETER)
#: Arguments that differ from microbatch to microbatch.
_VARYING: Final = (Role.BATCH, Role.INPUT, Role.COTANGENT)
#: Computed again rather than kept: views, and what makes more of one value.
_VIEWS: Final = frozenset({"stablehlo.reshape"})
_GROWING: Final = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.convert"})
_RANDOM: Final = frozenset({"stablehlo.rng", "stablehlo.rng_bit_generator"})
_SHARDING: Final = "sdy.sharding"
#: Attributes of arguments that name results by number, which are others in a part.
_OF_RESULTS: Final = "tf.aliasing_output"


@dataclass(frozen=True)
class CutModule:
    """One pass. `arguments` and `results` are numbers of the body's, in order.

    Saved values follow: as arguments they have the numbers after those of the body, as results
    negative ones, the last of all -1.
    """

    module: bytes
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class CutBody:
    """Both passes, and how many values the second reads that only the first computes."""

    forward: CutModule
    backward: CutModule | None
    saved: int


def cut_body(body: Body) -> CutBody:
    """Cut a body where its cotangents come in.

    Raises FlintError FL240 where one operation of `main` is of both passes.
    """
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(body.captured.module)
        inline_calls(module)  # what a small function keeps for its gradient is often cheap
        body = replace(body, captured=replace(body.captured, module=write_bytecode(module)))
        graph = _Graph(module, body)
        outputs = tuple(i for i, p in enumerate(body.results) if p.role in _FORWARD_RESULTS)
        if len(outputs) == len(body.results):
            return CutBody(graph.part(body, outputs, ()), None, 0)
        gradients = tuple(i for i in range(len(body.results)) if i not in outputs)
        saved = graph.saved(gradients)
        forward = graph.part(body, outputs, saved)
        backward = graph.part(body, gradients, (), saved)
    return CutBody(forward, backward, len(saved))


def with_shardings(module: bytes, first: int, shardings: Sequence[str], *, results: bool) -> bytes:
    """A module whose arguments (or `results`) from `first` on have these shardings, "" for none."""
    from jaxlib.mlir import ir

    with make_context():
        parsed = ir.Module.parse(module)
        main = functions_of(parsed)["main"]
        name = "res_attrs" if results else "arg_attrs"
        found = _attributes(main, name)
        for at, sharding in enumerate(shardings, first):
            if sharding:
                found[at] = {**found[at], _SHARDING: ir.Attribute.parse(sharding)}
        main.attributes[name] = _array(found)
        return write_bytecode(parsed)


class _Graph:
    """The operations of `main`, and which pass each is of."""

    def __init__(self, module: Any, body: Body) -> None:
        self.module = module  # which owns the operations
        main = functions_of(module)["main"]
        *self.ops, self.end = [op.operation for op in main.regions[0].blocks[0].operations]
        self.numbers: dict[Any, Value] = {
            argument: (_ARGUMENTS, i)
            for i, argument in enumerate(main.regions[0].blocks[0].arguments)
        }
        for at, op in enumerate(self.ops):
            self.numbers.update({result: (at, i) for i, result in enumerate(op.results)})
        self.reads = [self._reads(op) for op in self.ops]
        self.returned = [self.numbers[value] for value in self.end.operands]
        roles = [port.role for port in body.arguments]
        self.varies = self._computed_from(roles, _VARYING, _RANDOM)
        self.pulled = self._computed_from(roles, (Role.COTANGENT,), frozenset())
        self.forward = self._forward(body)

    def _reads(self, op: Any) -> list[Value]:
        """The values of `main` that an operation reads, also in its regions."""
        from jaxlib.mlir import ir

        found: list[Value] = []

        def visit(inner: Any) -> Any:
            found.extend(self.numbers[v] for v in inner.operands if v in self.numbers)
            return ir.WalkResult.ADVANCE

        op.walk(visit)
        return list(dict.fromkeys(found))

    def _computed_from(
        self, roles: Sequence[Role], seeds: Iterable[Role], names: frozenset[str]
    ) -> list[bool]:
        """For each operation, whether it depends on such arguments, or is one of `names`."""
        wanted, found = set(seeds), [False] * len(self.ops)
        for at, op in enumerate(self.ops):
            found[at] = op.name in names or any(
                roles[i] in wanted if of == _ARGUMENTS else found[of] for of, i in self.reads[at]
            )
        return found

    def _needed(self, roots: Iterable[int]) -> set[int]:
        """The operations from which `roots` are computed, with these."""
        found: set[int] = set()
        pending = list(roots)
        while pending:
            at = pending.pop()
            if at >= 0 and at not in found:
                found.add(at)
                pending.extend(of for of, _ in self.reads[at])
        return found

    def _forward(self, body: Body) -> set[int]:
        given = zip(body.results, self.returned, strict=True)
        wanted = self._needed(v[0] for port, v in given if port.role in _FORWARD_RESULTS)
        tagged = {at for at in range(len(self.ops)) if self._is_tagged(at)}
        found = {at for at in self._needed(wanted | tagged) if self.varies[at]}
        mixed = next((at for at in sorted(found) if self.pulled[at]), None)
        if mixed is not None:
            scope, place = Locations().decode(self.ops[mixed].location)
            raise FlintError(
                "FL240",
                f"{self.ops[mixed].name} is part of the forward and of the backward pass of a stage: "
                f"{body.captured.name} cannot be compiled pass by pass",
                place=" ".join(t for t in (place, scope) if t) or None,
                help="leave out the compiler",
            )
        return found

    def _is_tagged(self, at: int) -> bool:
        """Whether the name of an operation says that it is of the forward pass."""
        if self.pulled[at] or not self.varies[at]:
            return False
        name, _ = Locations().decode(self.ops[at].location)
        return split_name_stack(name)[1] is Phase.FORWARD

    def saved(self, results: Sequence[int]) -> tuple[Value, ...]:
        """What the backward pass, which gives `results`, reads of the forward pass."""
        found: dict[Value, None] = {}
        seen: set[int] = set()
        pending = [self.returned[i] for i in results]
        while pending:
            at, number = pending.pop()
            if at in self.forward and not self._is_cheap(at):
                found[at, number] = None
            elif at >= 0 and at not in seen:
                seen.add(at)
                pending.extend(self.reads[at])
        return tuple(sorted(found))

    def _is_cheap(self, at: int) -> bool:
        """Whether what an operation reads is kept in its place: one value, not larger than it."""
        op, name = self.ops[at], self.ops[at].name
        if len(self.reads[at]) != 1 or name not in _VIEWS | _GROWING:
            return False
        size, read = _num_bytes(op.results[0].type), _num_bytes(op.operands[0].type)
        return name in _VIEWS or size > read

    def part(
        self, body: Body, results: Sequence[int], more: Sequence[Value], given: Sequence[Value] = ()
    ) -> CutModule:
        """The module that computes `results` and `more` from arguments and `given` values."""
        from jaxlib.mlir import ir

        module = ir.Module.parse(body.captured.module)
        main = functions_of(module)["main"]
        block = main.regions[0].blocks[0]
        *ops, end = [op.operation for op in block.operations]
        count = len(block.arguments)
        for at, number in given:
            value = ops[at].results[number]
            value.replace_all_uses_with(block.add_argument(value.type, ir.Location.name("saved")))

        def value_of(value: Value) -> Any:
            at, number = value
            return block.arguments[number] if at == _ARGUMENTS else ops[at].results[number]

        last = [end.operands[i] for i in results] + [value_of(value) for value in more]
        with end.location, ir.InsertionPoint(end):
            ir.Operation.create("func.return", operands=last)
        end.erase()
        for op in reversed(ops):
            if not any(True for result in op.results for _ in result.uses):
                op.erase()
        return _signed(module, main, count, results, len(more))


def _signed(module: Any, main: Any, count: int, results: Sequence[int], more: int) -> CutModule:
    """The module without arguments that nothing reads, of `count` and those that were added."""
    from jaxlib.mlir import ir

    block = main.regions[0].blocks[0]
    kept = [a.arg_number for a in block.arguments if a.arg_number >= count or _is_read(a)]
    attributes = [
        *_attributes(main, "arg_attrs"),
        *({} for _ in range(count, len(block.arguments))),
    ]
    given = _attributes(main, "res_attrs")
    main.attributes["arg_attrs"] = _array(
        {k: v for k, v in attributes[i].items() if k != _OF_RESULTS} for i in kept
    )
    main.attributes["res_attrs"] = _array(
        [*(given[i] for i in results), *({} for _ in range(more))]
    )
    for i in range(len(block.arguments) - 1, -1, -1):
        if i not in kept:
            block.erase_argument(i)
    end = list(block.operations)[-1].operation
    types = [a.type for a in block.arguments], [v.type for v in end.operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    numbers = (*results, *range(-more, 0))
    return CutModule(write_bytecode(module), tuple(kept), numbers)


def _is_read(value: Any) -> bool:
    return any(True for _ in value.uses)


def _attributes(main: Any, name: str) -> list[dict[str, Any]]:
    """The attributes of each argument ("arg_attrs") or result ("res_attrs")."""
    from jaxlib.mlir import ir

    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    count = len(kind.inputs if name == "arg_attrs" else kind.results)
    if name not in main.attributes:
        return [{} for _ in range(count)]
    found = (ir.DictAttr(a) for a in ir.ArrayAttr(main.attributes[name]))
    return [{a.name: a.attr for a in attributes} for attributes in found]


def _array(attributes: Iterable[dict[str, Any]]) -> Any:
    from jaxlib.mlir import ir

    return ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])


def _num_bytes(type_: Any) -> int:
    from jaxlib.mlir import ir

    if not isinstance(type_, ir.RankedTensorType):
        return 0
    return int(math.prod(type_.shape)) * element_bits(type_.element_type) // 8
