"""HLO modules that cannot be, or whose calls have no end, are refused before they are walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flint.errors import FlintError, Malformed
from flint.ir.mesh import Mesh
from flint.passes.hlo.module import HloModule, message_class
from flint.passes.hlo.operations import check_operation
from flint.passes.hlo.walk import module_to_program

MESH = Mesh(("x",), (2,))


def module() -> Any:
    """A loop of three iterations whose body calls a function of one addition; `f32[4]` all over."""
    proto = message_class("HloModule")(name="m", entry_computation_id=1)
    add = computation(proto, 3, "parameter", "add")
    add.instructions[1].operand_ids.extend([0, 0])
    body = computation(proto, 2, "parameter", "call")
    body.instructions[1].operand_ids.append(0)
    body.instructions[1].called_computation_ids.append(3)
    condition = computation(proto, 4, "parameter", "constant")
    condition.instructions[1].shape.element_type = 1
    entry = computation(proto, 1, "parameter", "while")
    loop = entry.instructions[1]
    loop.operand_ids.append(0)
    loop.called_computation_ids.extend([2, 4])
    loop.backend_config = b'{"known_trip_count":{"n":"3"}}'
    return proto


def computation(proto: Any, identity: int, *opcodes: str) -> Any:
    made = proto.computations.add(id=identity, name=f"c{identity}", root_id=len(opcodes) - 1)
    for number, opcode in enumerate(opcodes):
        i = made.instructions.add(id=number, name=f"{opcode}.{identity}", opcode=opcode)
        i.shape.element_type = 11
        i.shape.dimensions.append(4)
    return made


def instruction(proto: Any, identity: int, number: int = 1) -> Any:
    return next(c for c in proto.computations if c.id == identity).instructions[number]


def doubling(proto: Any) -> None:
    for i in range(10, 60):
        made = computation(proto, i, "parameter", "call", "call")
        for call in made.instructions[1:]:
            call.operand_ids.append(0)
            call.called_computation_ids.append(i + 1 if i < 59 else 3)
    instruction(proto, 2).called_computation_ids[0] = 10


def test_the_sample_is_read() -> None:
    program = module_to_program(HloModule(module()), MESH)
    program.verify()
    assert [r.trip_count for r in program.regions] == [3]
    assert int((program.flops * program.trips).sum()) == 3 * 4


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda p: setattr(
                instruction(p, 1), "backend_config", b'{"known_trip_count":{"n":-3}}'
            ),
            "loop 'while.1' runs -3 times",
        ),
        (
            lambda p: setattr(instruction(p, 3).shape, "element_type", 99),
            "'add.3' has elements of type 99",
        ),
        (
            lambda p: instruction(p, 3).shape.dimensions.append(-4),
            "'add.3' has a negative dimension",
        ),
        (
            lambda p: instruction(p, 2).called_computation_ids.__setitem__(0, 2),
            "call one another without end: c2 (2) -> c2 (2)",
        ),
        (doubling, "operations with its calls written out"),
    ],
    ids=["trips", "type", "dimension", "itself", "doubling"],
)
def test_what_cannot_be_is_refused(spoil: Callable[[Any], None], said: str) -> None:
    proto = module()
    spoil(proto)
    with pytest.raises(FlintError) as caught:
        module_to_program(HloModule(proto, "m.hlo.pb"), MESH)
    assert caught.value.code == "FL303" and said in caught.value.message, caught.value


@pytest.mark.parametrize(
    ("opcode", "windowed", "is_read"),
    [
        ("reduce-window", 4, True),  # a batch of 2^27, which no window slides over
        ("reduce-window", 1 << 27, False),
        ("convolution", 4, True),
        ("convolution", 1 << 27, False),
    ],
)
def test_only_what_windows_slide_over_is_bounded(opcode: str, windowed: int, is_read: bool) -> None:
    proto = message_class("HloModule")()
    made, *operands = computation(proto, 1, opcode, "parameter", "parameter").instructions
    for i in (made, *operands):
        i.shape.dimensions[:] = [1 << 27, windowed]
    windows = (1, 3) if opcode == "reduce-window" else (3,)
    for size in windows:
        made.window.dimensions.add(size=size, stride=1, padding_low=size // 2)
    if opcode == "convolution":
        numbers = made.convolution_dimension_numbers
        numbers.output_feature_dimension = 0
        for name in ("input", "kernel", "output"):
            getattr(numbers, f"{name}_spatial_dimensions").append(1)
    if is_read:
        check_operation(made, operands, 1)
        return
    with pytest.raises(Malformed, match="has windows at 134,217,728 positions"):
        check_operation(made, operands, 1)
