"""A document of InfraGraph, as its own package reads it, and the graph of all components that it means.

The graph is made here: the package's service adds the edges of a device once for each of its components, and
leaves out, without a word, what an edge names and nobody has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    import networkx

#: Components and edges of a graph, expanded: more takes minutes to read.
MOST = 250_000
_UNITS = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "ns": 1.0,
    "us": 1e3,
    "ms": 1e6,
}
#: Objects of the package and of YAML, which have no types.
Said = Any


class Document(NamedTuple):
    """A document: what it says, annotations of the whole, and its graph.

    Components are nodes "host.0.xpu.3" with their `type`, `device` and `inside` (the device's own name, "host.0").
    Edges have the name of their `link`, its `bandwidth` in bytes per second and `latency` in ns, if it has them.
    """

    path: Path
    text: str
    said: Said
    notes: Mapping[str, str]
    graph: networkx.Graph

    def refuse(self, code: str, said: str, help_: str, name: str = "") -> NoReturn:
        """Raise FlintError at the first line that has `name`."""
        lines = self.text.splitlines() if name else []
        line = next((n for n, text in enumerate(lines, 1) if name in text), 0)
        place = f"{self.path}:{line}" if line else str(self.path)
        raise FlintError(code, f"{self.path.name}: {said}", place=place, help=help_)


def package() -> Said:
    """The module `infragraph`. Raises FlintError FL511 where it is not installed."""
    try:
        import infragraph
    except ImportError as error:
        said = f"graphs of InfraGraph need its package: {error}"
        raise FlintError("FL511", said, help="pip install 'flint-ir[infragraph]'") from error
    return infragraph


@lru_cache(maxsize=4)
def read_document(path: Path, data: bytes) -> Document:
    """The document that a file holds: an infrastructure, with annotations or not, or one device.

    Raises FlintError FL510 for what is none, FL511 without the package, FL512 for an edge between what is
    not there, FL518 for a graph that is too large.
    """
    import networkx  # not where other YAML files are read

    text, said, annotation = data.decode("utf-8", "replace"), *_new("Infrastructure", "Annotation")
    try:
        body, notes = _parts(text)
        said.deserialize(body)
        annotation.deserialize(notes)
    except Exception as error:  # the package raises whatever it meets
        raise _no_graph(path, error) from error
    found = Document(path, text, said, _attributes(annotation.graph), networkx.Graph())
    try:
        _Expansion(found).add(said, "")
    except ValueError as error:
        raise _no_graph(path, error) from error
    for node in annotation.nodes or ():
        name = re.sub(r"\[(\d+)\]", r".\1.", node.name).strip(".")
        if name in found.graph:
            found.graph.nodes[name].update(_attributes(node.attributes))
    return found


def _no_graph(path: Path, error: Exception) -> FlintError:
    what = " ".join(str(error).split())[:300] or type(error).__name__
    help_ = "give what Infrastructure.serialize() of the package infragraph writes"
    said = f"{path.name} is not an InfraGraph: {what}"
    return FlintError("FL510", said, place=str(path), help=help_)


def _new(*names: str) -> list[Said]:
    return [getattr(package(), name)() for name in names]


def _attributes(said: Said) -> dict[str, str]:
    return {a.attribute: a.value for a in said or ()}


def _parts(text: str) -> tuple[Said, Said]:
    """The infrastructure and the annotations."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text, loader)):
        raise ValueError("it has aliases (*name), which may stand for any number of entries")
    found = yaml.load(text, loader)
    found = found.get("infragraph") or found
    body = found.get("infrastructure") or found
    if "components" in body:  # a device alone
        one = {"name": body.get("name"), "device": body.get("name"), "count": 1}
        body = {"name": body.get("name"), "devices": [body], "instances": [one]}
    return body, found.get("annotations") or {}


class _Expansion:
    """Adds all components and edges of a document to its graph."""

    def __init__(self, document: Document) -> None:
        self.document, self.graph, self.added = document, document.graph, 0
        self.devices = {d.name: d for d in document.said.devices}
        devices = document.said.devices
        for owner in (document.said, *devices):
            parts = owner.components if owner is not document.said else owner.instances
            if len(self._parts(owner)) < len(parts) or len(self.devices) < len(devices):
                raise ValueError(f"two devices, or two parts of '{owner.name}', have one name")

    def add(self, owner: Said, inside: str) -> None:
        """The components and edges of a device, or of the whole, whose names begin with `inside`."""
        for name, (count, kind, device) in self._parts(owner).items():
            for node in (f"{inside}{name}.{i}" for i in range(count)):
                self._count()
                if device:
                    self.add(self.devices[self._known("device", device, self.devices)], f"{node}.")
                else:
                    self.graph.add_node(node, type=kind, device=owner.name, inside=inside[:-1])
        links = {link.name: self._physical(link) for link in owner.links or ()}
        for edge in owner.edges or ():
            if edge.scheme not in ("many2many", "one2one"):
                raise ValueError(f"the package makes no edges of the scheme {edge.scheme}")
            said = links[self._known("link", edge.link, links)]
            ends = (self._nodes(owner, inside, end) for end in (edge.ep1, edge.ep2))
            for a, b in product(*ends) if edge.scheme == "many2many" else zip(*ends, strict=False):
                self._count()
                if a != b:
                    self.graph.add_edge(a, b, link=edge.link, **said)

    def _parts(self, owner: Said) -> dict[str, tuple[int, str, str]]:
        """By name: how many, of which type, and the device that each of them is."""
        if owner is self.document.said:
            return {i.name: (i.count, "device", i.device) for i in owner.instances}
        return {
            c.name: (
                c.count,
                c.custom.type if c.choice == "custom" else c.choice,
                c.name if c.choice == "device" else "",
            )
            for c in owner.components
        }

    def _physical(self, link: Said) -> dict[str, float | None]:
        """Bandwidth and latency of a link in our units; transfers are of a width that nobody states."""
        found: dict[str, float | None] = {}
        for key in ("bandwidth", "latency"):
            said = getattr(link.physical, key) if link.physical else None
            unit = str(said.choice) if said else ""
            value = getattr(said, unit) if unit in _UNITS else None
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"link '{link.name}' has a {key} of {value}")
            found[key] = None if value is None else value * _UNITS[unit]
        return found

    def _nodes(self, owner: Said, inside: str, end: Said) -> list[str]:
        """The components that an end of an edge means: cx5[0:2].port[0]."""
        outer = end.instance if owner is self.document.said else end.device
        found = [inside]
        for element in f"{outer}.{end.component}".split(".") if outer else end.component.split("."):
            parts = self._parts(owner) if owner else {}
            name = self._known(f"part of {owner.name}", element.partition("[")[0], parts, element)
            count, _, device = parts[name]
            which = self._picked(element, count)
            found = [f"{f}{name}.{i}." for f in found for i in which]
            owner = self.devices.get(device)
        if owner:
            raise ValueError(f"an edge ends at device '{owner.name}', not at a component of it")
        return [f[:-1] for f in found]

    def _picked(self, element: str, count: int) -> range:
        """Which of `count` parts "name[slice]" means, where slices are Python's."""
        inside = element.partition("[")[2].rstrip("]")
        try:
            first, *rest = [int(bound) if bound else None for bound in inside.split(":")]
            if first is not None and not rest:
                return range(range(count)[first], range(count)[first] + 1)
            return range(count)[slice(first, *(rest or [None]))]
        except (ValueError, TypeError, IndexError):
            self._known(f"part of {count}", element, ())
            raise

    def _known(self, what: str, name: str, known: Iterable[str], said: str = "") -> str:
        """A name that is known. Raises FlintError FL512 for another."""
        if name not in (there := list(known)):
            help_ = f"there are {', '.join(there)}" if there else "slices are Python's: name[0:8]"
            wrong = f"there is no {what} called {said or name}{nearest(name, there)}"
            self.document.refuse("FL512", wrong, help_, said or name)
        return name

    def _count(self) -> None:
        self.added += 1
        if self.added > MOST:
            help_ = (
                "leave out parts that are alike, and annotate the graph with flint_size: unlimited"
            )
            self.document.refuse("FL518", f"it has more than {MOST:,} components and edges", help_)
