"""The summary of a workload, inside `flint.capture/1`."""

from __future__ import annotations

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
