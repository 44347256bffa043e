"""What `flint explain` says."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ValueDocument(TypedDict):
    """A row as an operand or reader of another."""

    row: int
    """Its number in the program."""
    opcode: str
    """What it is."""
    type: str
    """Element type and shape on one device."""
    bytes: int
    """Size of it on one device, in bytes."""
    name: str
    """Of a parameter, its path in the arguments."""
    sharding: str
    """How its dimensions lie on the mesh; "" where that is not known."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""


class LoopDocument(TypedDict):
    """A loop around a row."""

    name: str
    """Its name, where it has one."""
    trip_count: int
    """How often it runs."""
    location: str
    """File and line of the user's source."""


class ExplanationDocument(TypedDict):
    """One communication row: what moves, between whom, how often, why, and for whom."""

    number: int
    """Which communication row of the program it is, from 0: the N of --collective."""
    row: int
    """Its number in the program."""
    opcode: str
    """What it is called."""
    collective: str
    """Kind: all_reduce, all_gather, ..., or send or recv."""
    over: str
    """Mesh axes, or the route of a message."""
    group_size: int
    """Devices of a group."""
    groups: int
    """Groups on the mesh; 0 for messages."""
    type: str
    """Element type and shape of its result on one device."""
    payload_bytes: int
    """Bytes that one device puts in, each time."""
    executions: int
    """How often a step runs it."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    scope: str
    """Its scope in the source."""
    location: str
    """File and line of the user's source."""
    cause: list[str]
    """Why: the change of a sharding and the rule that asked for it, as the partitioner says it."""
    loops: list[LoopDocument]
    """Loops around it, outermost first."""
    parameters: list[str]
    """Arguments of the step whose elements move, sliced or rearranged but not computed with."""
    operands: list[ValueDocument]
    """What it reads."""
    consumers: list[ValueDocument]
    """What reads its result, the first 8."""
    in_branch: bool
    """Whether it runs only if a branch is taken."""


class ScopeDocument(TypedDict):
    """What the rows of the scopes that match a pattern do in one step, on one device."""

    pattern: str
    """The pattern of --scope."""
    scopes: list[str]
    """Scopes that match it."""
    ops: int
    """Operations, with the trip counts of loops."""
    flops: int
    """Floating point operations of a step on one device."""
    result_bytes: int
    """Bytes written in a step on one device."""
    phases: dict[str, int]
    """Operations by phase."""
    locations: list[str]
    """Files and lines of the user's source."""
    collectives: list[ExplanationDocument]
    """The communication among them."""


class ExplainDocument(TypedDict):
    """Why a program communicates; exactly one of the three is there."""

    schema: Literal["flint.explain/1"]
    """Kind and version of this document."""
    collectives: NotRequired[list[ExplanationDocument]]
    """All communication, in program order (without --collective and --scope)."""
    collective: NotRequired[ExplanationDocument]
    """The one that was asked for (--collective)."""
    scope: NotRequired[ScopeDocument]
    """A part of the program (--scope)."""
