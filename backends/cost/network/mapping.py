"""What a user says about where mesh axes lie: the tier of each, as text or as a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flint.cluster.models import Cluster
from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh

_FORM = "model=nvlink,data=ib"


def tiers_of_axes(mapping: object, mesh: Mesh, cluster: Cluster) -> dict[str, str]:
    """Axis to tier, of those that `mapping` names: "model=nvlink,data=ib" or a dictionary.

    Raises FlintError FL703 for anything else, an axis that the mesh or a tier that the cluster does
    not have.
    """
    found = _as_dictionary(mapping)
    tiers = [n.name for n in cluster.network]
    for axis, tier in found.items():
        if axis not in mesh.names:
            raise FlintError(
                "FL703",
                f"mesh has no axis '{axis}' to map{nearest(axis, mesh.names)}",
                help=f"the mesh is {mesh}",
            )
        if tier not in tiers:
            raise FlintError(
                "FL703",
                f"cluster '{cluster.name}' has no tier '{tier}'{nearest(tier, tiers)}",
                help=f"its tiers are {', '.join(tiers)}",
            )
    return found


def parse_mapping(text: str) -> dict[str, str]:
    """Axis to tier from "model=nvlink,data=ib". Raises FlintError FL703."""
    found: dict[str, str] = {}
    for item in filter(None, (p.strip() for p in text.split(","))):
        axis, equals, tier = (p.strip() for p in item.partition("="))
        if not (axis and equals and tier):
            raise FlintError("FL703", f"'{item}' is not AXIS=TIER", help=f"write {_FORM}")
        if axis in found:
            raise FlintError(
                "FL703",
                f"axis '{axis}' is mapped twice, to '{found[axis]}' and to '{tier}'",
                help="an axis lies in one tier; an unmapped axis is split where necessary",
            )
        found[axis] = tier
    return found


def _as_dictionary(mapping: object) -> dict[str, str]:
    if isinstance(mapping, str):
        return parse_mapping(mapping)
    if not isinstance(mapping, Mapping):
        raise FlintError(
            "FL703",
            f"a mapping of mesh axes cannot have type {type(mapping).__name__}",
            help=f'give {{"model": "nvlink"}}, or "{_FORM}"',
        )
    _refuse_other_types("axis", mapping.keys())
    _refuse_other_types("tier", mapping.values())
    return dict(mapping)


def _refuse_other_types(what: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise FlintError(
                "FL703",
                f"the name of a{'n' if what == 'axis' else ''} {what} cannot have type {type(name).__name__}: {name!r}",
                help='give {"model": "nvlink"}',
            )
