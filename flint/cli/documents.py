"""What commands of the core say with `--json`, where no result says it itself: loaded for schemas alone."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import Doc, TypedDict

from flint.backends.cost.estimate_json import EstimateDocument
from flint.backends.summary.cross_check import CrossCheck
from flint.backends.summary.summary import Summary
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack


class NamedSchemaDocument(TypedDict):
    """One kind of document."""

    name: str  #: Kind and version: what stands in the field `schema` of the document.
    summary: str  #: What it says.


class SchemasDocument(TypedDict):
    """The kinds of documents that commands print with --json."""

    schema: Literal["flint.schemas/1"]  #: Kind and version of this document.
    schemas: list[NamedSchemaDocument]  #: All of them, by name.


#: One pass of one microbatch, with its times. A call, since "pass" is a word of Python.
UnitDocument = TypedDict(
    "UnitDocument",
    {
        "pass": Annotated[str, Doc("forward, backward, input or weight: what is computed.")],
        "chunk": Annotated[int, Doc("The stage of the rank.")],
        "microbatch": Annotated[int, Doc("Number of the microbatch, from 0.")],
        "start": Annotated[float, Doc("When it starts; a forward pass of a stage takes 1.")],
        "end": Annotated[float, Doc("When it ends, in the same unit.")],
    },
)
UnitDocument.__doc__ = "One pass of one microbatch on a rank, with its times."


class ImpossibleDocument(TypedDict):
    """A schedule that cannot be with these numbers."""

    name: str  #: Its name.
    impossible: str  #: Why not.


class ScheduleSummaryDocument(TypedDict):
    """A schedule with its idle time and what ranks hold."""

    name: str  #: Its name, as in --schedule.
    ranks: int  #: Ranks of the pipeline.
    microbatches: int  #: Microbatches of a step.
    chunks: int  #: Stages of each rank.
    idle: float  #: Share of the step in which a rank waits, 0 to 1.
    held: list[int]  #: Most passes whose activations each rank holds at once, from rank 0.
    stages: list[list[int]]  #: Numbers of the stages of each rank, by chunk.


class ScheduleDocument(ScheduleSummaryDocument):
    """All of a schedule."""

    units: list[list[UnitDocument]]  #: What each rank runs, in order.


class SchedulesDocument(TypedDict):
    """Schedules of pipelines; exactly one of the two is there."""

    schema: Literal["flint.schedules/1"]  #: Kind and version of this document.
    schedules: NotRequired[list[ScheduleSummaryDocument | ImpossibleDocument]]
    """All of them (without a NAME)."""
    schedule: NotRequired[ScheduleDocument]  #: The one that was asked for.


#: A pass that was applied to a program. A call, since "pass" is a word of Python.
AppliedDocument = TypedDict(
    "AppliedDocument",
    {
        "pass": Annotated[str, Doc("The pass with its options, as in --passes.")],
        "program": Annotated[str, Doc("Number of the program, and its rank classes.")],
        "rows_before": Annotated[int, Doc("Rows of the program before.")],
        "rows_after": Annotated[int, Doc("Rows of the program after.")],
    },
)
AppliedDocument.__doc__ = "A pass that was applied to a program."


class OptDocument(TypedDict):
    """What passes made of programs."""

    schema: Literal["flint.opt/1"]  #: Kind and version of this document.
    passes: list[AppliedDocument]  #: Each pass on each program, in order.
    file: str | None  #: The file that was written; null without -o.


class ExportDocument(TypedDict):
    """A graph that was written to a file, or traces to a directory."""

    schema: Literal["flint.export/1"]  #: Kind and version of this document.
    file: str  #: The file or directory.
    format: str  #: json, graphml, dot or chakra.
    nodes: int  #: Nodes of the graph: rows of the program; of traces those of one rank.
    dependencies: int  #: Edges of the graph but those that loops carry.


class RegionDocument(TypedDict):
    """A loop, or a branch of a conditional: a range of rows."""

    kind: str  #: loop or branch.
    name: str  #: Its name, where it has one.
    start: int  #: Its first row.
    stop: int  #: The row after its last.
    trip_count: int  #: How often it runs.
    parent: int  #: Number of the region around it; -1: none.
    location: str  #: File and line of the user's source.


class NodeDocument(TypedDict):
    """One row of a program. What is empty is omitted."""

    id: int  #: Number of the row.
    opcode: str  #: What it is called.
    kind: str  #: parameter, value, compute, collective, send or recv.
    dtype: NotRequired[str]  #: Element type of its result.
    shape: list[int]  #: Shape of its result on one device.
    result_bytes: int  #: Bytes of its results on one device.
    operand_bytes: int  #: Bytes that it reads, on one device.
    flops: int  #: Floating point operations of one execution.
    trips: int  #: How often a step runs it.
    collective: NotRequired[str]  #: Kind of communication.
    group: NotRequired[str]  #: Mesh axes of its groups.
    route: NotRequired[str]  #: Route of a message.
    comm_bytes: NotRequired[int]  #: Bytes that one device puts in, each time.
    channel: NotRequired[int]  #: Number that a send and its receive share.
    stream: NotRequired[str]  #: Queue of the device that it runs in.
    name: NotRequired[str]  #: Of a parameter, its path in the arguments.
    scope: NotRequired[str]  #: Its scope in the source.
    location: NotRequired[str]  #: File and line of the user's source.
    cause: NotRequired[str]  #: Why it communicates; of a parameter, its sharding.
    phase: str  #: forward, backward, remat, optimizer, prefill, decode or unknown.
    flags: NotRequired[str]  #: Names of its flags (docs/program.md), joined by commas.
    alias: NotRequired[int]  #: The row whose memory it writes.
    region: NotRequired[int]  #: Number of the innermost region that it is in.


class EdgeDocument(TypedDict):
    """That one row reads another."""

    source: int  #: The row that is read.
    target: int  #: The row that reads.
    carried: NotRequired[Literal[True]]  #: There, if a loop carries the value to its next turn.


class GraphDocument(TypedDict):
    """The program of a rank as a graph (`flint export -f json`)."""

    schema: Literal["flint.graph/1"]  #: Kind and version of this document.
    mesh: dict[str, int]  #: Devices along each axis.
    regions: list[RegionDocument]  #: Loops and branches.
    nodes: list[NodeDocument]  #: Rows of the program, in order.
    edges: list[EdgeDocument]  #: Which reads which.


class TierDocument(TypedDict):
    """One tier of a network."""

    name: str  #: Its name, as in --map.
    size: int  #: Chips in a domain of it; 0: without limit.


class ClusterSummaryDocument(TypedDict):
    """One cluster that comes with Flint."""

    name: str  #: Its name, as in --cluster.
    title: str  #: What it is.
    aliases: list[str]  #: Other names of it.
    chip: str  #: Name of its chip.
    peak_flops_per_s: dict[str, float]  #: Dense peak of a chip by element type, in FLOP/s.
    memory_bytes: int  #: Memory of a chip, in bytes.
    memory_bandwidth_bytes_per_s: float  #: Bandwidth of that memory, in bytes/s.
    networks: list[TierDocument]  #: Tiers of the network, the innermost first.


class ClustersDocument(TypedDict):
    """Clusters that come with Flint, or one cluster with the source of each number."""

    schema: Literal["flint.clusters/1"]  #: Kind and version of this document.
    clusters: NotRequired[list[ClusterSummaryDocument]]  #: All of them, by name (list).
    cluster: NotRequired[Cluster]
    """The one that was asked for, as in its file, what it takes from its base included (show)."""
    trust: NotRequired[
        str
    ]  #: In a line, what its constants rest on and how far to trust them (show).
    stacks: NotRequired[tuple[Stack, ...]]  #: Whose software may run on clusters, by name (stacks).


class FindingDocument(TypedDict):
    """One thing that is wrong."""

    code: str  #: Which of the findings of docs/errors.md it is.
    rank: int  #: The rank in whose trace it is; -1 for all.
    node: int  #: The id of the node; -1 where it is of none.
    sentence: str  #: What is wrong there.


class CheckDocument(TypedDict):
    """What was examined of traces, and what was found."""

    schema: Literal["flint.check/1"]  #: Kind and version of this document.
    ok: bool  #: Whether nothing was found.
    ranks: int  #: Traces that were read.
    nodes: int  #: Nodes in them.
    groups: int  #: Groups of communicators.
    partial: bool  #: Whether only some ranks were there: nothing is said about the others.
    deadlock_examined: bool  #: False where earlier findings or absent ranks leave nothing to prove.
    proved: Literal["any-times", "these-times", "nothing"]
    """Whether the traces end whatever anything lasts, or at the times that they have."""
    doubt: str
    """Why it is not proved for any times; empty where it is, or where deadlock was not examined."""
    compared_files: int  #: Files that were held against the manifest.
    notes: list[str]  #: Sentences about what is not a fault, and about what could not be proved.
    counts: dict[str, int]  #: Findings of each code, all of them.
    findings: list[FindingDocument]  #: The first 20 of each code, by rank and node.


class FilesDocument(TypedDict):
    """The traces that were written."""

    directory: str  #: Where they are, as it was given with -o.
    files: int  #: Files of ranks and beside them.
    ranks: int  #: Ranks that have a trace.
    nodes: dict[str, int]  #: Nodes of a trace, by rank class.
    trace_bytes: int  #: Bytes of all traces.
    disk_bytes: int  #: Bytes of those that are no hard links to others.


class CaptureDocument(TypedDict):
    """A captured program: its summary, its estimates, and what was written of it."""

    schema: Literal["flint.capture/1"]  #: Kind and version of this document.
    summary: Summary
    """What the program computes, holds and sends. With -o, communication is that of the traces."""
    files: FilesDocument | None  #: The traces; null without -o.
    estimates: list[EstimateDocument]
    """An estimate for each cluster that was given with -c, in that order."""
    warnings: list[str]
    """What could not be captured as asked for, and what was made up: sentences."""
    cross_check: NotRequired[CrossCheck]
    """Where a compiler's program of the same step differs (with --cross-check)."""
    timings: dict[str, float]
    """Wall seconds of the stages of this run, total_seconds with them. The one part that varies."""
