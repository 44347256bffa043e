"""What `flint simulate --with astra-sim` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class FailureDocument(TypedDict):
    """Why a run did not end as it should."""

    code: str
    """A section of docs/errors.md."""
    message: str
    """What happened."""
    help: str | None
    """What to do about it."""


class WaitingDocument(TypedDict):
    """What a rank that does not finish waits in, by Flint's own run of the traces."""

    rank: int
    """Its number."""
    node: int
    """The id of the node in its trace."""
    name: str
    """What that is called."""
    what: str
    """What it communicates."""
    absent: list[int]
    """Ranks that do not come there."""


class TermDocument(TypedDict):
    """A part of the difference between an estimate and a simulated time."""

    name: str
    """What it is."""
    ns: float
    """What it adds to the step, in ns."""
    because: str
    """What it rests on."""


class TimedCommunicationDocument(TypedDict):
    """Communication of one kind over the same axes, of the slowest rank."""

    kind: str
    """Of collective, or message."""
    over: str
    """Mesh axes."""
    simulated_count: int
    """How often the rank does it in the traces."""
    simulated_ns: float
    """How long that takes by the simulator's rules, in ns, with waiting for others."""
    estimated_count: int
    """How often the slowest class does it in the estimate."""
    estimated_ns: float
    """How long that takes there, in ns."""


class ComparisonDocument(TypedDict):
    """The way from Flint's estimate to the simulated time."""

    rules_step_time_ns: int | None
    """Step time of Flint's own run by ASTRA-sim's rules, in ns; null where it has none."""
    rules_note: str
    """Why it has none; else ""."""
    cluster: str
    """Cluster of the estimate."""
    estimated_ns: float
    """Step time of the estimate, in ns."""
    terms: list[TermDocument]
    """What each reason changes: they add up to the difference. Empty where nothing is known of it."""
    communication: list[TimedCommunicationDocument]
    """What communication takes on both sides. Empty without the rules' run."""


class SimulatedRunDocument(TypedDict):
    """What the simulator said of the traces on one network."""

    network: str
    """Name of the network file."""
    system: str
    """Name of the file of settings."""
    dimensions: list[tuple[str, int]]
    """Topology and size of each dimension of the network, inner first."""
    ranks: int
    """Ranks of the network."""
    finished: bool
    """Whether every rank finished."""
    step_time_ns: int | None
    """When the last rank finished, in ns; null unless all did."""
    slowest: int | None
    """The first rank of those that finish last; null unless all finished."""
    end_ns: list[int | None]
    """When each rank finished, in cycles of 1 ns, from rank 0; null for those that did not."""
    exposed_ns: list[int | None]
    """How long each rank did not compute, in ns; null where the simulator did not say it."""
    compute_ns: list[int | None]
    """How long each rank computed, in ns; null where the simulator did not say it."""
    comm_ns: list[int | None]
    """How long each rank communicated, in ns; null where the simulator did not say it."""
    unfinished: list[int]
    """Ranks that did not finish."""
    failure: FailureDocument | None
    """Why some did not; null where all finished."""
    waiting: list[WaitingDocument]
    """What ranks wait in that did not finish, as far as Flint's own run says it."""
    undisturbed_ns: int | None
    """Step time by Flint's rules where no rank is late, in ns; null where none was made late."""
    comparison: ComparisonDocument | None
    """How the time came about; null where there is no time or no estimate."""
    notes: list[str]
    """Sentences about the run."""


class SimulationDocument(TypedDict):
    """What a simulator said of traces, network by network."""

    schema: Literal["flint.simulation/1"]
    """Kind and version of this document."""
    simulator: Literal["astra-sim"]
    """Which simulator."""
    binary: str
    """File name of the binary that was run, or that Flint ran its rules itself."""
    disturbance: str
    """Which ranks were made late, and by how much; empty where none was."""
    warnings: list[str]
    """Files that are not as they were written, options that change nothing: sentences."""
    runs: list[SimulatedRunDocument]
    """One entry for each network."""
