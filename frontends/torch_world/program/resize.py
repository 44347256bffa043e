"""The program of a derived recording, from that of the recording it was derived from.

Only sizes differ, so only the rows of events with other sizes are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flint.frontends.torch_world.program.build import Built, moved_bytes
from flint.frontends.torch_world.program.operands import read, results
from flint.frontends.torch_world.program.work import work_of
from flint.frontends.torch_world.record.recording import Event, Recording, TensorInfo
from flint.ir.builder import Table
from flint.ir.program import Kind, Program


def resized(built: Built, recording: Recording, derived: Recording) -> Program:
    """What `build_program(derived, ...)` is; `built` is the program of `recording`."""
    edit = _Edit(built)
    for storage, row in built.arguments.items():
        before, after = recording.storages.get(storage), derived.storages.get(storage)
        if after is not None and after is not before:
            edit.set(row, TensorInfo(storage, after.shape, after.dtype, after.num_bytes))
    events = zip(built.rows, recording.events, derived.events, strict=True)
    for row, old, event in events:
        if event is not old and row >= 0:
            edit.event(row, event)
    return edit.result()


@dataclass
class _Edit:
    built: Built
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.built.program
        self.result_bytes = program.result_bytes.copy()
        self.operand_bytes = program.operand_bytes.copy()
        self.flops = program.flops.copy()
        self.dims = program.dims.copy()

    def set(self, row: int, tensor: TensorInfo) -> None:
        """A row without work whose value is `tensor`."""
        self.shapes[row] = tensor.shape
        self.result_bytes[row] = tensor.num_bytes

    def event(self, row: int, event: Event) -> None:
        """The row of an event with other sizes."""
        if self.built.program.kind[row] == Kind.VALUE:
            self.set(row, event.outputs[0])
            return
        work, stored = work_of(event), results(event)
        moved = moved_bytes(work, read(event), stored, lambda t: t.num_bytes)
        self.operand_bytes[row], self.result_bytes[row] = moved
        self.flops[row], self.dims[row] = work.flops, work.dims
        self.shapes[row] = (stored or event.inputs)[0].shape

    def result(self) -> Program:
        """The program, its shapes numbered in order of first use."""
        program = self.built.program
        table: Table[tuple[int, ...]] = Table()
        numbers = program.shape.copy()
        old = [program.shapes[n] for n in numbers.tolist()]
        for row, shape in enumerate(old):
            numbers[row] = table.index(self.shapes.get(row, shape))
        return program.with_rows(
            shape=numbers,
            shapes=tuple(table),
            result_bytes=self.result_bytes,
            operand_bytes=self.operand_bytes,
            flops=self.flops,
            dims=self.dims,
        )
