"""What `flint clusters list`, `show` and `stacks` say."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import GetPydanticSchema
from typing_extensions import TypedDict

from flint.cluster.models import Cluster
from flint.cluster.stack import Stack


class TierDocument(TypedDict):
    """One tier of a network."""

    name: str
    """Its name, as in --map."""
    size: int
    """Chips in a domain of it; 0: without limit."""


class ClusterSummaryDocument(TypedDict):
    """One cluster that comes with Flint."""

    name: str
    """Its name, as in --cluster."""
    title: str
    """What it is."""
    aliases: list[str]
    """Other names of it."""
    chip: str
    """Name of its chip."""
    peak_flops_per_s: dict[str, float]
    """Dense peak of a chip by element type, in FLOP/s."""
    memory_bytes: int
    """Memory of a chip, in bytes."""
    memory_bandwidth_bytes_per_s: float
    """Bandwidth of that memory, in bytes/s."""
    networks: list[TierDocument]
    """Tiers of the network, the innermost first."""


class ClustersDocument(TypedDict):
    """Clusters that come with Flint, or one cluster with the source of each number."""

    schema: Literal["flint.clusters/1"]
    """Kind and version of this document."""
    clusters: NotRequired[list[ClusterSummaryDocument]]
    """All of them, by name (list)."""
    cluster: NotRequired[
        Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(Cluster))]
    ]
    """The one that was asked for, as in its file, what it takes from its base included (show)."""
    stacks: NotRequired[
        list[Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(Stack))]]
    ]
    """Whose software may run on clusters, by name (stacks)."""
