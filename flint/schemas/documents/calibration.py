"""What `flint calibrate` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class PriceErrorDocument(TypedDict):
    """How far prices are from measurements."""

    mean_percent: float
    """Mean absolute error of the rows, in percent of each row's measured time."""
    mean_log_ratio: float
    """Mean of the logarithms of price over measurement, without signs: by it fits are judged."""
    of_sum_percent: float
    """Error of the sum of all times, in percent; below 0 the prices are too short."""


class MeasurementsDocument(TypedDict):
    """One file that was read."""

    name: str
    """Its name, without folders."""
    format: str
    """What it was read as."""
    kernels: int
    """Rows of kernels that are used."""
    collectives: int
    """Rows of collectives that are used."""
    left_out: dict[str, int]
    """Rows that are not, by reason."""
    notes: list[str]
    """How it was understood."""
    unknown_share: float
    """Share of a trace's kernel time of which only the time is known, 0 to 1."""


class FittedConstantDocument(TypedDict):
    """A constant that was fitted."""

    name: str
    """Its name in a cluster file."""
    before: float
    """The base's value, in the unit that the name ends in."""
    after: float
    """The fitted one."""
    is_at_bound: bool
    """Whether it may not go further."""


class FittedDocument(TypedDict):
    """One class of kernels, or one tier of the network."""

    name: str
    """The class (products, attention ...), or the tier's name."""
    rows: int
    """Different kernels or collectives."""
    fitted_on: int
    """Those that constants were fitted on."""
    held_out: int
    """Those that errors are of."""
    measured_ns: float
    """Their time in all."""
    before: PriceErrorDocument | None
    """With the base's constants, on the rows held out; null without any."""
    after: PriceErrorDocument | None
    """With the fitted ones; null where nothing was fitted."""
    one_constant: PriceErrorDocument | None
    """Of a roofline times one constant, fitted on the same rows."""
    is_written: bool
    """Whether the fitted constants are better and go into the file."""
    reason: str
    """Why not; empty if they do."""
    constants: list[FittedConstantDocument]
    """The constants that were fitted."""
    kept: dict[str, str]
    """Constants that stay as the base has them, and why."""


class CalibrationDocument(TypedDict):
    """Constants of a cluster from measurements."""

    schema: Literal["flint.calibration/1"]
    """Kind and version of this document."""
    base: str
    """The cluster whose constants were fitted."""
    sources: list[MeasurementsDocument]
    """What was read."""
    kernels: list[FittedDocument]
    """Classes of kernels."""
    tiers: list[FittedDocument]
    """Tiers of the network."""
    left_out: dict[str, int]
    """Collectives that the cluster has no place for, by reason."""
    host_launch_ns: float | None
    """Mean time of a launch on the host, from traces."""
    files: list[str]
    """What was written, as it was named."""
