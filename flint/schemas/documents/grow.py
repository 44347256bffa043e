"""What `flint grow` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class GrownVariableDocument(TypedDict):
    """A size that dimensions of the workload are made of."""

    name: str
    """What `--set` calls it: "d7". Layers that are rows of their own are called "layers"."""
    value: int
    """Its size on one device."""
    whole: int
    """Its size over the axes that split it."""
    roles: list[str]
    """What it is to the model, or a factor of: "width", "heads", ..."""
    certain: bool
    """Whether the roles are."""
    axes: list[str]
    """Axes of the mesh that split it."""
    how: str
    """What told these axes; empty without any."""
    rows: int
    """Rows that have it in their shape."""
    flops_share: float
    """The share of the FLOPs that rows which have it do, from 0 to 1."""
    new_value: int
    """Its size on one device in the grown workload."""
    new_whole: int
    """Its whole size there."""


class GrownTotalDocument(TypedDict):
    """A total of one device in one step."""

    name: str
    """What it is: "FLOPs", "all_gather over data, bytes", ..."""
    before: float
    """In the original."""
    after: float
    """In the grown workload."""


class GrowDocument(TypedDict):
    """Variables of a workload, what they became, and how totals moved."""

    schema: Literal["flint.grow/1"]
    """Kind and version of this document."""
    output: str | None
    """The file or directory that was written; null where nothing was."""
    files: int
    """How many files were written."""
    mesh: dict[str, int]
    """Axes with sizes, of the grown workload."""
    old_mesh: dict[str, int]
    """Axes with sizes, of the original."""
    rows: list[int]
    """Rows of each program of the grown workload."""
    variables: list[GrownVariableDocument]
    """All variables of the original."""
    changes: list[GrownTotalDocument]
    """Totals before and after; empty where nothing was asked for."""
    assumed: list[str]
    """What was taken for granted, in sentences."""
