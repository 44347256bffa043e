"""The summary of a workload, inside `flint.capture/1`."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class CollectiveDocument(TypedDict):
    """Communication of one kind over the same axes, in one step of one device."""

    collective: str
    """Kind: all_reduce, all_gather, reduce_scatter, all_to_all, permute, broadcast, or message."""
    over: str
    """Mesh axes, joined by "+"; of messages, their route."""
    group_size: int
    """Devices of a group; 0 for messages."""
    count: int
    """How often a step runs it, with the trip counts of loops."""
    comm_bytes: int
    """Bytes that one device puts in, of all `count` together."""


class ClassSummaryDocument(TypedDict):
    """One step of one device of a rank class: ranks that run the same program."""

    name: str
    """Name of the class; "all" where every rank runs the same."""
    ranks: int
    """How many ranks it has."""
    ops: int
    """Operations of the program that do work."""
    executions: int
    """The same with the trip counts of loops."""
    flops: int
    """Floating point operations of a step on one device; a multiply-add counts 2."""
    matmul_flops: int
    """Those of matrix products and convolutions."""
    parameter_bytes: int
    """Bytes of all that the step is given: weights, optimizer state, batch."""
    argument_bytes: dict[str, int]
    """The same by argument of the step, in bytes."""
    collectives: list[CollectiveDocument]
    """Communication, most bytes first."""
    unpriced: dict[str, int]
    """Executions of operations whose work is not known, by opcode: `flops` leaves them out."""
    unsized_communication: int
    """Measured kernels that communicate, of which neither bytes nor group are known: `collectives` leaves them out."""


class CompilerMemoryDocument(TypedDict):
    """The memory of one device by a compiler's assignment of buffers, in bytes."""

    argument_bytes: int
    """Bytes of the arguments."""
    output_bytes: int
    """Bytes of the results."""
    alias_bytes: int
    """Bytes of results that lie in the place of arguments: they are in both of the others."""
    temp_bytes: int
    """Bytes of everything between."""
    code_bytes: int
    """Bytes of the generated code; 0 where none was generated."""


class CompiledByDocument(TypedDict):
    """The compiler that made the programs."""

    name: str
    """Its name: xla-gpu, xla-tpu or xla-tpu-cycles."""
    chip: str
    """The chip that it compiled for."""
    version: str
    """Its package and version."""
    topology: str
    """The chips that it compiled for: their number, or the torus of a slice."""
    memory: CompilerMemoryDocument | None
    """Memory by its own analysis; null where the programs come from several modules."""


class SummaryDocument(TypedDict):
    """What a captured program computes, holds and sends."""

    name: str
    """Name of the program."""
    source: str
    """File that it is from, without its directories; "" where there is none."""
    mesh: dict[str, int]
    """Devices along each axis, in the order of the mesh."""
    devices: int
    """Devices of the mesh."""
    classes: list[ClassSummaryDocument]
    """One entry for each rank class."""
    compiled_by: NotRequired[CompiledByDocument]
    """The whole compiler that made the programs, only where there is one."""
