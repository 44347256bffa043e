"""The dimensions of a space: what the model declares, what a user sweeps, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flint.errors import FlintError, nearest
from flint.tools.explore.point import FIELDS, SWEPT, PointField, SpaceDimension
from flint.tools.explore.space.declared import Declared, ModelKind
from flint.tools.explore.space.meshes import AxisLimit, meshes_of, parse_axes
from flint.tools.explore.space.sweep import parse_sweeps
from flint.tools.explore.subject import Subject

# Values of a sweep that can be told to be none before anything is captured.


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


_SWEPT = "--sweep"
_PIPELINE = ("cut", "schedule", "microbatches", "chunks")
_ESTIMATED_ON = {option.typed: name for name, option in SWEPT.items()}
_CHANGE = "cluster."


def axes_of(declared: Declared, mesh: str | None) -> tuple[AxisLimit, ...]:
    """The axes of all meshes with the sizes that they may have; none for the mesh of a file.

    Raises FlintError FL863 as `parse_axes` does.
    """
    if declared.kind is ModelKind.ENTRY or mesh is not None:
        return parse_axes(mesh, declared.axes)
    return (AxisLimit("data"),) if declared.kind is ModelKind.SCRIPT else ()


def mesh_dimension(
    declared: Declared, axes: Sequence[AxisLimit], devices: Sequence[int], mesh: str | None
) -> SpaceDimension:
    """All meshes. Raises FlintError FL863 as `meshes_of` does, and for a program that has one mesh."""
    if declared.kind is ModelKind.PROGRAM:
        if devices or any(axis.least != axis.most for axis in axes):
            raise FlintError(
                "FL863",
                f"{declared.name} was captured for one mesh and has no other",
                help="omit --devices, and give the sizes of all axes in --mesh, or no --mesh",
            )
        return SpaceDimension(
            "mesh", PointField.MESH, meshes_of((), axes) if axes else ("",), "default"
        )
    origin = "declared" if declared.axes else "default"
    return SpaceDimension(
        "mesh", PointField.MESH, meshes_of(devices, axes), "--mesh" if mesh else origin
    )


def dimensions_of(
    subject: Subject,
    declared: Declared,
    meshes: SpaceDimension,
    clusters: Sequence[str],
    sweeps: Sequence[str],
    serve: Sequence[str] = (),
) -> tuple[SpaceDimension, ...]:
    """Every dimension, in the order of `FIELDS`.

    Raises FlintError FL860 for a sweep that cannot be, or no cluster, FL899 for what no replay has, and for values what the
    command line says of them: FL216 (options), FL246 (schedules), FL701, FL702, FL703, FL725, FL726, FL868.
    """
    found = [_dimension(name, values, declared) for name, values in parse_sweeps(sweeps).items()]
    given = {**dict(subject.settings), **dict(subject.pipeline)}
    _refuse_twice(found, given, clusters)
    fixed = {**given, **{d.name: d for d in found}}
    found += [meshes, *declared.dimensions(fixed), *_served(serve)]
    if clusters:
        found.append(SpaceDimension("cluster", PointField.CLUSTER, tuple(clusters), "-c"))
    elif not any(d.field == PointField.CLUSTER for d in found):
        raise FlintError("FL860", "no cluster is given", help="add -c h100-dgx")
    _check_options(subject, declared, found)
    check_values(found)
    return tuple(sorted(found, key=lambda d: FIELDS.index(d.field)))


def _dimension(name: str, values: tuple[str, ...], declared: Declared) -> SpaceDimension:
    """What a sweep of this name sets. Raises FlintError FL860 for none, or several."""
    meant = list(_meant(name, declared))
    if not meant:
        raise _unknown(name, declared)
    if len(meant) > 1:
        raise FlintError(
            "FL860",
            f"--sweep {name}: both {declared.name} and the estimate have an option of this name",
            help="give the option another name",
        )
    return SpaceDimension(name.removeprefix(_CHANGE), meant[0], values, _SWEPT)


def _served(texts: Sequence[str]) -> list[SpaceDimension]:
    """What is replayed. Raises FlintError FL899, and what `served_as` does, for values that cannot be."""
    from flint.tools.serve.asked import served_as

    found = parse_sweeps(texts)
    first = {name: values[0] for name, values in found.items()}
    for name, values in found.items():
        for value in values:
            served_as({**first, name: value})
    return [SpaceDimension(n, PointField.SERVE, values, "--serve") for n, values in found.items()]


def _meant(name: str, declared: Declared) -> list[str]:
    is_option = name in declared.options or declared.kind is ModelKind.SCRIPT
    known: list[str] = []
    if name.startswith(_CHANGE):
        return [PointField.CHANGE]
    if name == "cluster" or name in _ESTIMATED_ON:
        known = [_ESTIMATED_ON.get(name, PointField.CLUSTER)]
        is_option = name in declared.options
    elif name in _PIPELINE and not is_option and declared.kind is ModelKind.ENTRY:
        known = [PointField.PIPELINE]
    # An option of the entry called `schedule` is set: the entry may make more of it than a schedule.
    if is_option or (not known and declared.takes_anything):
        known.append(PointField.SETTING)
    return known


def _unknown(name: str, declared: Declared) -> FlintError:
    pipeline = _PIPELINE if declared.kind is ModelKind.ENTRY else ()
    others = (*pipeline, "cluster", *_ESTIMATED_ON, "cluster.ib.bandwidth")
    mesh = name in ("mesh", "devices") or name in declared.axes
    return FlintError(
        "FL860",
        f"--sweep {name}: there is no such option{nearest(name, [*declared.options, *others])}",
        help="meshes are limited by --mesh pipe=4,data=*,model=1..8 and --devices 256,512"
        if mesh
        else f"{declared.name} has "
        + (", ".join(declared.options) or "no options")
        + "; beside those: "
        + ", ".join(others),
    )


def _refuse_twice(
    found: Sequence[SpaceDimension], given: Mapping[str, str], clusters: Sequence[str]
) -> None:
    """Raise FlintError FL860 for what is swept and given, and for clusters that are there twice."""
    fields = (PointField.SETTING, PointField.PIPELINE)
    fixed = next((d for d in found if d.field in fields and d.name in given), None)
    if fixed is not None:
        raise FlintError(
            "FL860",
            f"'{fixed.name}' is swept, but also given as {given[fixed.name]}",
            help="omit one of them",
        )
    if clusters and any(d.field == PointField.CLUSTER for d in found):
        raise FlintError("FL860", "clusters are swept, but also given", help="omit one of them")
    again = next((c for c in clusters if list(clusters).count(c) > 1), None)
    if again is not None:
        raise FlintError("FL860", f"the cluster {again} is given twice")
    names = [d.name for d in found]
    again = next((n for n in names if names.count(n) > 1), None)
    if again is not None:
        raise FlintError(
            "FL860", f"--sweep {again} and --sweep cluster.{again}: one name for two things"
        )


def _check_options(subject: Subject, declared: Declared, found: Sequence[SpaceDimension]) -> None:
    """Raise FlintError FL216 for options that are unknown, missing, or do not take their value."""
    swept = {d.name: d.values for d in found if d.field == PointField.SETTING}
    pipeline = {n: t for n, t in subject.pipeline if n in declared.options}
    first = {**pipeline, **dict(subject.settings), **{n: v[0] for n, v in swept.items()}}
    declared.check(first)
    for name, values in swept.items():
        for value in values[1:]:
            declared.check({**first, name: value})
