"""A graph as a cluster: tiers from its links, the chip and what no graph says from a cluster that it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flint.cluster.load import find_cluster_file, lent, lent_source, merged, preset_names
from flint.cluster.models import Cluster, Network, NetworkKind, Quantity
from flint.errors import FlintError
from flint.tools.interop.infragraph.document import Document, read_document
from flint.tools.interop.infragraph.tiers import Tier, tiers_of

#: Annotations of a whole graph: the cluster whose chip and constants it has; whether there may be more of the same.
CLUSTER, SIZE, UNLIMITED = "flint_cluster", "flint_size", "unlimited"
_NAME_IT = (
    f"annotate the graph with {CLUSTER}: a preset, or the path of a TOML file, whose chip it has; or name the"
    " chip in the description of the xpu component"
)


def read_cluster(path: Path, data: bytes) -> Cluster:
    """The cluster that an InfraGraph file describes.

    Raises FlintError FL510 to FL518, and what `Cluster.load` raises for the cluster that it names.
    """
    document = read_document(path, data)
    tiers, base = tiers_of(document), _base(document)
    missing: list[str] = []
    lenders = _lenders(tiers, base)
    if (size := document.notes.get(SIZE, UNLIMITED)) != UNLIMITED:
        document.refuse("FL510", f"{SIZE} is {size}", f"it may only be {UNLIMITED}", SIZE)
    sizes = [t.size for t in tiers[:-1]] + [0 if SIZE in document.notes else tiers[-1].size]
    try:
        networks = tuple(
            Network.model_validate(
                _network(document, tier._replace(size=size), lender, base, missing)
            )
            for tier, size, lender in zip(tiers, sizes, lenders, strict=True)
        )
        name = document.said.name or path.stem
        if name == base.name and networks == base.network:
            return base
        return Cluster(
            name=name,
            title=document.said.description or f"read from {path.name}",
            base=base.name,
            chip=base.chip,
            network=networks,
            derate=base.derate,
            host_launch_ns=base.host_launch_ns,
            notes=_notes(base, networks, missing),
        )
    except ValidationError as error:
        found = error.errors()[0]
        said = f"{'.'.join(map(str, found['loc']))} {found['msg']}"
        document.refuse("FL510", f"its cluster cannot be: {said}", "mend its names and numbers")


def _notes(base: Cluster, networks: tuple[Network, ...], missing: list[str]) -> str:
    said = [f"Chip, derate and host are those of {base.name}."]
    if missing:
        said.append(f"Not in the graph, as {base.name}: {', '.join(missing)}.")
    if bare := [n.name for n in networks if not n.constants]:
        said.append(
            f"Collectives of {', '.join(bare)} have no constants: docs/clusters.md says what is assumed."
        )
    return " ".join(said)


# Tiers.


def _lenders(tiers: list[Tier], base: Cluster) -> list[Network | None]:
    """The tier of the base that each tier of the graph is a change of.

    It is that of the same name; otherwise the innermost for the links inside hosts, and the outermost for the
    first beyond hosts.
    """
    found: list[Network | None] = []
    beyond = next((i for i, t in enumerate(tiers) if not t.is_inside), -1)
    for i, tier in enumerate(tiers):
        at = base.tier(tier.name)
        if at < 0 and i in (0, beyond):
            at = 0 if tier.is_inside else len(base.network) - 1
        found.append(base.network[at] if at >= 0 else None)
    return found


def _network(
    document: Document, tier: Tier, lender: Network | None, base: Cluster, missing: list[str]
) -> dict[str, Any]:
    """A tier as a file would have it, on top of its lender's if that is of the same kind."""
    forms = dict.fromkeys(tier.forms)
    near = lender or base.network[0 if tier.is_inside else -1]
    kind, shape = (
        (near.kind, near.torus_shape) if (near.kind, near.torus_shape) in forms else tier.forms[0]
    )
    if lender and lender.kind is not kind:
        lender = None
    own: dict[str, Any] = {"name": tier.name, "kind": kind.value, "size": tier.size}
    if kind is not NetworkKind.SWITCH:
        own["links"] = tier.links
    if kind is NetworkKind.TORUS:
        wrap = lender.torus_wrap_multiple if lender else max(shape)
        own |= {"torus_shape": shape, "torus_dimensions": len(shape), "torus_wrap_multiple": wrap}
    said = f"{document.path.name}: link {tier.name}"
    own |= _speed(document, tier, kind, lender, base, missing, said)
    if tier.latency is None:
        missing.append(f"latency of {tier.name}")
        own["latency_ns"] = _as(near.latency_ns, near, base)
    elif not _same(tier.latency, near.latency_ns.value) or not lender:
        own["latency_ns"] = _assumed(tier.latency, said)
    if lender is None:
        return own
    before = lender.model_dump(mode="json", exclude_defaults=True)
    known = {"name": base.name, "chip": {}, "network": [before]}
    (before,) = lent(known, {"network": [{**own, "name": lender.name}]})["network"]
    return merged(before, own)


def _speed(
    document: Document,
    tier: Tier,
    kind: NetworkKind,
    lender: Network | None,
    base: Cluster,
    missing: list[str],
    said: str,
) -> dict[str, Any]:
    """The bandwidth of a tier, and how much switches above leave of it, where its lender has another."""
    if tier.bandwidth is None:
        if lender is None:
            document.refuse(
                "FL516",
                f"no bandwidth is known of link '{tier.name}': it states none, and {base.name} has no such tier",
                "give the link physical.bandwidth, in gigabits_per_second or gigabytes_per_second",
                tier.name,
            )
        missing.append(f"bandwidth of {tier.name}")
        found = _as(lender.bandwidth_bytes_per_s, lender, base)
        if kind is NetworkKind.MESH:  # of as many links as there are others
            found["value"] *= tier.links / max(1, lender.size - 1)
        return {"bandwidth_bytes_per_s": found}
    speed = tier.bandwidth / (tier.links if kind is NetworkKind.TORUS else 1)
    left = speed / tier.oversubscription
    if lender and _same(left, lender.bandwidth_bytes_per_s.value / lender.oversubscription):
        return {}
    return {
        "bandwidth_bytes_per_s": _assumed(speed, said),
        "oversubscription": tier.oversubscription,
    }


def _same(a: float, b: float) -> bool:
    """Whether two numbers differ by no more than the format's numbers of 32 bits do."""
    return isclose(a, b, rel_tol=1e-6)


def _assumed(value: float, source: str) -> dict[str, Any]:
    return {"value": value, "kind": "assumed", "source": source}


def _as(quantity: Quantity, lender: Network, base: Cluster) -> dict[str, Any]:
    return _assumed(quantity.value, lent_source(quantity.source, f"{lender.name} of {base.name}"))


# The cluster whose chip it is.


def _base(document: Document) -> Cluster:
    """The cluster that a graph is a change of. Raises FlintError FL515 where nothing says it."""
    if name := document.notes.get(CLUSTER):
        try:
            found = find_cluster_file(name)
        except FlintError as error:
            document.refuse(error.code, error.message, error.help or _NAME_IT, name)
        return Cluster.load(name if name in preset_names() else document.path.parent / found)
    devices = {d.name: d for d in document.said.devices}
    found_: dict[str, str] = {}
    for node, data in document.graph.nodes(data=True):
        if data["type"] == "xpu":
            device, part = devices[data["device"]], node.split(".")[-2]
            what = f"{part} of {device.name}"
            if what not in found_:
                found_[what] = _named_by(
                    document, device, next(c for c in device.components if c.name == part)
                )
    if len({Cluster.load(preset).chip.name for preset in found_.values()}) > 1:
        said = ", ".join(f"{what} ({preset})" for what, preset in found_.items())
        document.refuse(
            "FL514", f"its accelerators are not alike: {said}", "give a graph for each kind"
        )
    return Cluster.load(next(iter(found_.values())))


def _named_by(document: Document, device: Any, part: Any) -> str:
    """The preset whose name, or whose chip's, stands nearest to an accelerator."""
    left: set[str] = set()
    for text in (
        f"{part.name} {part.description or ''}",
        *(device.name, device.description),
        *(document.said.name, document.said.description),
    ):
        found = _presets_in(text or "")
        left = (left & found or left) if left else found
        if len(left) == 1:
            return left.pop()
    what = f"{part.name} ({part.description or 'no description'}) of {device.name}"
    said = f"may be one of {', '.join(sorted(left))}" if left else "is no chip that Flint knows"
    document.refuse("FL515", f"accelerator {what} {said}", _NAME_IT, f"name: {part.name}")


def _presets_in(text: str) -> set[str]:
    """Presets of which the name with the most words stands in a text, in any order."""
    there = _words(text)
    found: dict[int, set[str]] = {}
    for words, preset in _names():
        if words <= there and (len(words) > 1 or len(*words) > 3 or words == there):
            found.setdefault(len(words), set()).add(preset)
    return found[max(found)] if found else set()


@cache
def _names() -> tuple[tuple[frozenset[str], str], ...]:
    """Names by their words: of presets, and of chips, for the preset that others with that chip are changes of."""
    clusters = sorted(map(Cluster.load, preset_names()), key=lambda c: bool(c.base))
    chips: Mapping[str, str] = {c.chip.name: c.name for c in reversed(clusters)}
    named = [(n, c.name) for c in clusters for n in (c.name, *c.aliases)]
    return tuple((_words(name), preset) for name, preset in [*named, *chips.items()])


def _words(text: str) -> frozenset[str]:
    found: Iterable[str] = re.findall("[a-z0-9]+", text.lower())
    return frozenset(found)
