"""Values of a sweep that can be told to be none before anything is captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flint.errors import FlintError, nearest
from flint.tools.explore.space.dimension import PointField, SpaceDimension


def check_values(dimensions: Sequence[SpaceDimension]) -> None:
    """Raise what `flint capture` and `flint estimate` would for values of dimensions.

    FlintError FL860 (numbers of microbatches and chunks), FL246 (schedules), FL701 and FL702 (clusters), FL703
    (policies), FL725 (stacks), FL726 (routings), FL868 (changes of a cluster).
    """
    for dimension in dimensions:
        check = _CHECKS.get(dimension.field)
        if check is not None:
            for value in dimension.values:
                check(dimension.name, value)
    _refuse_same_clusters(dimensions)
    _check_changes(dimensions)


def _pipeline(name: str, value: str) -> None:
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    if name in ("microbatches", "chunks"):
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise FlintError(
                "FL860",
                f"--sweep {name}: '{value}' is not a whole number above 0",
                help="write 4..64",
            )
    elif name == "schedule" and value and value not in SCHEDULES:
        raise FlintError(
            "FL246",
            f"unknown schedule '{value}'{nearest(value, list(SCHEDULES))}",
            help="one of: " + ", ".join(SCHEDULES),
        )


def _cluster(name: str, value: str) -> None:
    from flint.cluster.named import load_cluster

    load_cluster(value)


# An empty stack, policy or routing is what is taken without the option.


def _stack(name: str, value: str) -> None:
    from flint.cluster.stack import Stack

    if value:
        Stack.load(value)


def _policy(name: str, value: str) -> None:
    from flint.backends.cost.software import find_policy

    if value:
        find_policy(value)


def _routing(name: str, value: str) -> None:
    from flint.backends.cost.routing import find_routing

    if value:
        find_routing(value)


def _refuse_same_clusters(dimensions: Sequence[SpaceDimension]) -> None:
    """Raise FlintError FL860 for two names of one cluster: its points would count twice."""
    from flint.cluster.named import load_cluster

    names: dict[str, str] = {}
    for name in (v for d in dimensions if d.field == PointField.CLUSTER for v in d.values):
        content = load_cluster(name).model_dump_json()
        if content in names:
            raise FlintError(
                "FL860",
                f"{names[content]} and {name} are the same cluster",
                help="give only one of them",
            )
        names[content] = name


def _check_changes(dimensions: Sequence[SpaceDimension]) -> None:
    """A change that one of the clusters can have may stay; the others are refused one by one."""
    from flint.cluster.named import load_cluster
    from flint.tools.explore.machine.cluster_changes import PARTS, changed
    from flint.tools.explore.machine.values import read_change

    clusters = [
        load_cluster(v) for d in dimensions if d.field == PointField.CLUSTER for v in d.values
    ]
    changes = [d for d in dimensions if d.field == PointField.CHANGE]
    parts = [(d.name, v) for d in changes if d.name in PARTS for v in d.values]
    clusters += [changed(cluster, (part,)) for part in parts for cluster in clusters]
    for dimension in changes:
        for value in dimension.values:
            refused: list[FlintError] = []
            for cluster in clusters:
                try:
                    read_change(cluster, dimension.name, value)
                except FlintError as error:
                    refused.append(error)
            if len(refused) == len(clusters):
                raise refused[0]


_CHECKS: Mapping[str, Callable[[str, str], None]] = {
    PointField.PIPELINE: _pipeline,
    PointField.CLUSTER: _cluster,
    "stack": _stack,
    "policy": _policy,
    "routing": _routing,
}
