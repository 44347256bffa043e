"""A graph as a cluster: tiers from its links, the chip and what no graph says from a cluster that it names."""

from __future__ import annotations

import re
from functools import cache
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from flint.cluster.load import find_cluster_file, lent, lent_source, merged, preset_names
from flint.cluster.models import Cluster, Network, NetworkKind, Quantity
from flint.errors import FlintError
from flint.tools.interop.infragraph.document import Document, Said, read_document

if TYPE_CHECKING:
    from flint.tools.interop.infragraph.tiers import Tier

#: Annotations of a whole graph: the cluster whose chip and constants it has; whether there may be more of the same.
CLUSTER, SIZE, UNLIMITED = "flint_cluster", "flint_size", "unlimited"
_NAME_IT = f"annotate the graph with {CLUSTER}, a preset or a TOML file, or name the chip in the xpu's description"


def read_cluster(path: Path, data: bytes) -> Cluster:
    """The cluster that an InfraGraph file describes.

    Raises FlintError FL510 to FL518, and what `Cluster.load` raises for the cluster that it names.
    """
    from flint.tools.interop.infragraph.tiers import tiers_of

    document = read_document(path, data)
    tiers, base = tiers_of(document), _base(document)
    if (size := document.notes.get(SIZE, "")) == UNLIMITED:
        tiers[-1] = tiers[-1]._replace(size=0)
    elif size:
        document.refuse("FL510", f"{SIZE} is {size}", f"it may only be {UNLIMITED}", SIZE)
    try:
        networks = tuple(_network(document, i, tiers, base) for i in range(len(tiers)))
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
            notes=_notes(tiers, networks, base),
        )
    except ValidationError as error:
        found = error.errors()[0]
        said = f"{'.'.join(map(str, found['loc']))} {found['msg']}"
        document.refuse("FL510", f"its cluster cannot be: {said}", "mend its names and numbers")


def _notes(tiers: list[Tier], networks: tuple[Network, ...], base: Cluster) -> str:
    said = [f"Chip, derate and host are those of {base.name}."]
    missing = [f"bandwidth of {t.name}" for t in tiers if t.bandwidth is None]
    if missing := missing + [f"latency of {t.name}" for t in tiers if t.latency is None]:
        said.append(f"Not in the graph, as {base.name}: {', '.join(missing)}.")
    if bare := [n.name for n in networks if not n.constants]:
        said.append(
            f"Collectives of {', '.join(bare)} have the constants that docs/clusters.md assumes."
        )
    return " ".join(said)


def _network(document: Document, at: int, tiers: list[Tier], base: Cluster) -> Network:
    """A tier of the graph: a change of that of the base which has its name.

    Otherwise of the innermost for the first inside hosts, and of the outermost for the first beyond them.
    What is of another kind lends its latency only.
    """
    tier = tiers[at]
    near = base.network[
        found if (found := base.tier(tier.name)) >= 0 else 0 if tier.is_inside else -1
    ]
    first = next((t for t in tiers if t.is_inside == tier.is_inside), tier)
    form = (near.kind, near.torus_shape)
    kind, shape = form if form in tier.forms else tier.forms[0]
    lender = near if kind is near.kind and (tier is first or tier.name == near.name) else None
    own: Said = {"name": tier.name, "kind": kind.value, "size": tier.size}
    members = (tier.size or 0) // (tiers[at - 1].size if at else 1)
    links = {NetworkKind.MESH: members - 1, NetworkKind.RING: 2}.get(kind, 1)
    if kind is NetworkKind.TORUS:
        links = sum(min(2, size - 1) for size in shape)
        wrap = lender.torus_wrap_multiple if lender else max(shape)
        own |= {"torus_shape": shape, "torus_dimensions": len(shape), "torus_wrap_multiple": wrap}
    if kind is not NetworkKind.SWITCH and not (lender and lender.size == tier.size):
        own["links"] = max(1, links)
    source = f"{document.path.name}: link {tier.name}"
    if tier.bandwidth is not None:
        speed = tier.bandwidth / (links if kind is NetworkKind.TORUS else 1)
        had = lender and lender.bandwidth_bytes_per_s.value / lender.oversubscription
        if not had or not _same(speed / tier.oversubscription, had):
            own["bandwidth_bytes_per_s"] = _assumed(speed, source)
            own["oversubscription"] = tier.oversubscription
    elif lender:
        own["bandwidth_bytes_per_s"] = _as(lender.bandwidth_bytes_per_s, lender, base)
        if kind is NetworkKind.MESH:  # of as many links as there are others
            others = base.members[base.network.index(lender)] - 1
            own["bandwidth_bytes_per_s"]["value"] *= max(1, links) / max(1, others)
    else:
        said = f"link '{tier.name}' states no bandwidth, and {base.name} has no such tier"
        document.refuse(
            "FL516", said, "give the link physical.bandwidth in gigabits_per_second", tier.name
        )
    if tier.latency is None:
        own["latency_ns"] = _as(near.latency_ns, near, base)
    elif not lender or not _same(tier.latency, near.latency_ns.value):
        own["latency_ns"] = _assumed(tier.latency, source)
    before: Said = lender.model_dump(mode="json", exclude_defaults=True) if lender else {}
    if lender:
        known = {"name": base.name, "chip": {}, "network": [before]}
        (before,) = lent(known, {"network": [{**own, "name": lender.name}]})["network"]
    return Network.model_validate(merged(before, own))


def _same(a: float, b: float) -> bool:
    """Whether two numbers differ by no more than the format's numbers of 32 bits do."""
    return isclose(a, b, rel_tol=1e-6)


def _assumed(value: float, source: str) -> Said:
    return {"value": value, "kind": "assumed", "source": source}


def _as(quantity: Quantity, lender: Network, base: Cluster) -> Said:
    return _assumed(quantity.value, lent_source(quantity.source, f"{lender.name} of {base.name}"))


# The cluster whose chip it is.


def _base(document: Document) -> Cluster:
    """The cluster that a graph is a change of. Raises FlintError FL515 where nothing says it."""
    if name := document.notes.get(CLUSTER):
        try:
            return Cluster.load(document.path.parent / find_cluster_file(name))
        except FlintError as error:
            document.refuse(error.code, error.message, error.help or _NAME_IT, name)
    found: dict[str, str] = {}
    devices = {d.name: d for d in document.said.devices}
    for node, data in document.graph.nodes(data=True):
        if (
            data["type"] == "xpu"
            and (what := f"{node.split('.')[-2]} of {data['device']}") not in found
        ):
            device = devices[data["device"]]
            part = next(c for c in device.components if c.name == node.split(".")[-2])
            found[what] = _preset_of(document, device, part)
    if len({Cluster.load(preset).chip.name for preset in found.values()}) > 1:
        said = ", ".join(f"{what} ({preset})" for what, preset in found.items())
        document.refuse(
            "FL514", f"its accelerators are not alike: {said}", "give a graph for each kind"
        )
    return Cluster.load(next(iter(found.values())))


def _preset_of(document: Document, device: Said, part: Said) -> str:
    """The preset whose name, or whose chip's, stands nearest to an accelerator."""
    left: set[str] = set()
    said = document.said
    own = f"{part.name} {part.description}"
    for text in (own, device.name, device.description, said.name, said.description):
        found = _presets_in(text or "")
        left = left & found or left or found
        if len(left) == 1:
            return left.pop()
    what = f"{part.name} of {device.name} ({part.description or 'without description'})"
    which = f"may be one of {', '.join(sorted(left))}" if left else "is no chip that Flint knows"
    document.refuse("FL515", f"accelerator {what} {which}", _NAME_IT, f"name: {part.name}")


def _presets_in(text: str) -> set[str]:
    """Presets of which the name with the most words stands in a text, in any order."""
    there, found = _words(text), [(0, "")]
    for words, preset in _names():
        if words <= there and (len(words) > 1 or len(*words) > 3 or words == there):
            found.append((len(words), preset))
    return {preset for many, preset in found if preset and many == max(found)[0]}


@cache
def _names() -> tuple[tuple[frozenset[str], str], ...]:
    """Names by their words: of presets, and of chips, for the preset that others with that chip are changes of."""
    clusters = sorted(map(Cluster.load, preset_names()), key=lambda c: bool(c.base))
    named = [(n, c.name) for c in clusters for n in (c.name, *c.aliases)]
    chips = {c.chip.name: c.name for c in reversed(clusters)}
    return tuple((_words(name), preset) for name, preset in [*named, *chips.items()])


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall("[a-z0-9]+", text.lower()))
