"""What `flint export` says, and the graph that it writes as JSON."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ExportDocument(TypedDict):
    """A graph that was written to a file."""

    schema: Literal["flint.export/1"]
    """Kind and version of this document."""
    file: str
    """The file."""
    format: str
    """json, graphml or dot."""
    nodes: int
    """Nodes of the graph: rows of the program."""
    dependencies: int
    """Edges of the graph but those that loops carry."""


class RegionDocument(TypedDict):
    """A loop, or a branch of a conditional: a range of rows."""

    kind: str
    """loop or branch."""
    name: str
    """Its name, where it has one."""
    start: int
    """Its first row."""
    stop: int
    """The row after its last."""
    trip_count: int
    """How often it runs."""
    parent: int
    """Number of the region around it; -1: none."""
    location: str
    """File and line of the user's source."""


class NodeDocument(TypedDict):
    """One row of a program. What is empty is left out."""

    id: int
    """Number of the row."""
    opcode: str
    """What it is called."""
    kind: str
    """parameter, value, compute, collective, send or recv."""
    dtype: NotRequired[str]
    """Element type of its result."""
    shape: list[int]
    """Shape of its result on one device."""
    result_bytes: int
    """Bytes of its results on one device."""
    operand_bytes: int
    """Bytes that it reads, on one device."""
    flops: int
    """Floating point operations of one execution."""
    trips: int
    """How often a step runs it."""
    collective: NotRequired[str]
    """Kind of communication."""
    group: NotRequired[str]
    """Mesh axes of its groups."""
    route: NotRequired[str]
    """Route of a message."""
    comm_bytes: NotRequired[int]
    """Bytes that one device puts in, each time."""
    channel: NotRequired[int]
    """Number that a send and its receive share."""
    stream: NotRequired[str]
    """Queue of the device that it runs in."""
    name: NotRequired[str]
    """Of a parameter, its path in the arguments."""
    scope: NotRequired[str]
    """Its scope in the source."""
    location: NotRequired[str]
    """File and line of the user's source."""
    cause: NotRequired[str]
    """Why it communicates; of a parameter, its sharding."""
    phase: str
    """forward, backward, remat, optimizer or unknown."""
    flags: NotRequired[str]
    """Names of its flags (docs/program.md), joined by commas."""
    alias: NotRequired[int]
    """The row whose memory it writes."""
    region: NotRequired[int]
    """Number of the innermost region that it is in."""


class EdgeDocument(TypedDict):
    """That one row reads another."""

    source: int
    """The row that is read."""
    target: int
    """The row that reads."""
    carried: NotRequired[Literal[True]]
    """There, if a loop carries the value to its next turn."""


class GraphDocument(TypedDict):
    """The program of a rank as a graph (`flint export -f json`)."""

    schema: Literal["flint.graph/1"]
    """Kind and version of this document."""
    mesh: dict[str, int]
    """Devices along each axis."""
    regions: list[RegionDocument]
    """Loops and branches."""
    nodes: list[NodeDocument]
    """Rows of the program, in order."""
    edges: list[EdgeDocument]
    """Which reads which."""
