"""What `flint simulate --with scalesim` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from flint.schemas.documents.simulation import FailureDocument


class ProductDocument(TypedDict):
    """A product of matrices, m x k times k x n."""

    m: int
    """Rows of the first."""
    n: int
    """Columns of the second."""
    k: int
    """What is summed over."""
    count: int
    """How often all ranks together do it in a step."""
    cycles: int
    """Cycles of one on one array, by Flint's closed form."""
    simulated_cycles: int | None
    """The same by SCALE-Sim; null where it was not run."""


class ScaleSimDocument(TypedDict):
    """Products of a step on one systolic array."""

    schema: Literal["flint.scalesim/1"]
    """Kind and version of this document."""
    simulator: Literal["scalesim"]
    """Which simulator."""
    chip: str
    """Name of the chip."""
    rows: int
    """Rows of the array."""
    columns: int
    """Columns of the array."""
    dataflow: str
    """What stays in the array: ws (weights), os (results), is (inputs)."""
    products: list[ProductDocument]
    """Distinct products, the one with most cycles in all first."""
    total_cycles: int
    """Cycles of all products of all ranks, by Flint's closed form."""
    compared_cycles: int
    """Those of them for which SCALE-Sim was run."""
    difference_cycles: int
    """SCALE-Sim's cycles less Flint's, of those."""
    failure: FailureDocument | None
    """What went wrong; null if nothing did."""
    notes: list[str]
    """Sentences about the run."""
