"""What `flint simulate` says with `--json`, by simulator: loaded for schemas alone."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from flint.backends.cost.astrasim.step import Waiting
from flint.tools.simulators.reasons import Comparison


class ProductDocument(TypedDict):
    """A product of matrices, m x k times k x n."""

    m: int  #: Rows of the first.
    n: int  #: Columns of the second.
    k: int  #: What is summed over.
    count: int  #: How often all ranks together do it in a step.
    cycles: int  #: Cycles of one on one array, by Flint's closed form.
    simulated_cycles: int | None  #: The same by SCALE-Sim; null where it was not run.


class ScaleSimDocument(TypedDict):
    """Products of a step on one systolic array."""

    schema: Literal["flint.scalesim/1"]  #: Kind and version of this document.
    simulator: Literal["scalesim"]  #: Which simulator.
    chip: str  #: Name of the chip.
    rows: int  #: Rows of the array.
    columns: int  #: Columns of the array.
    dataflow: str  #: What stays in the array: ws (weights), os (results), is (inputs).
    products: list[ProductDocument]  #: Distinct products, the one with most cycles in all first.
    total_cycles: int  #: Cycles of all products of all ranks, by Flint's closed form.
    compared_cycles: int  #: Those of them for which SCALE-Sim was run.
    difference_cycles: int  #: SCALE-Sim's cycles less Flint's, of those.
    failure: FailureDocument | None  #: What went wrong; null if nothing did.
    notes: list[str]  #: Sentences about the run.


class SimulationDocument(TypedDict):
    """What a simulator said of traces, network by network."""

    schema: Literal["flint.simulation/1"]  #: Kind and version of this document.
    simulator: Literal["astra-sim"]  #: Which simulator.
    binary: str  #: File name of the binary that was run, or that Flint ran its rules itself.
    disturbance: str  #: Which ranks were made late, and by how much; empty where none was.
    warnings: list[str]
    """Files that are not as they were written, options that change nothing: sentences."""
    runs: list[SimulatedRunDocument]  #: One entry for each network.


class FailureDocument(TypedDict):
    """Why a run did not end as it should."""

    code: str  #: A section of docs/errors.md.
    message: str  #: What happened.
    help: str | None  #: What to do about it.


class SimulatedRunDocument(TypedDict):
    """What the simulator said of the traces on one network."""

    network: str  #: Name of the network file.
    system: str  #: Name of the file of settings.
    dimensions: list[tuple[str, int]]
    """Topology and size of each dimension of the network, inner first."""
    ranks: int  #: Ranks of the network.
    finished: bool  #: Whether every rank finished.
    step_time_ns: int | None  #: When the last rank finished, in ns; null unless all did.
    slowest: int | None  #: The first rank of those that finish last; null unless all finished.
    end_ns: list[int | None]
    """When each rank finished, in cycles of 1 ns, from rank 0; null for those that did not."""
    exposed_ns: list[int | None]
    """How long each rank did not compute, in ns; null where the simulator did not say it."""
    compute_ns: list[int | None]
    """How long each rank computed, in ns; null where the simulator did not say it."""
    comm_ns: list[int | None]
    """How long each rank communicated, in ns; null where the simulator did not say it."""
    unfinished: list[int]  #: Ranks that did not finish.
    failure: FailureDocument | None  #: Why some did not; null where all finished.
    waiting: tuple[Waiting, ...]
    """What ranks wait in that did not finish, as far as Flint's own run says it."""
    undisturbed_ns: int | None
    """Step time by Flint's rules where no rank is late, in ns; null where none was made late."""
    comparison: Comparison | None
    """How the time came about; null where there is no time or no estimate."""
    notes: list[str]  #: Sentences about the run.
