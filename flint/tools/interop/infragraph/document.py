"""A document of InfraGraph, as its own package reads it, and the graph of all components that it means.

The graph is made here: the package's service adds the edges of a device once for each of its components, and
leaves out, without a word, what an edge names and nobody has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import networkx

from flint.errors import FlintError, nearest

#: What a graph may have, expanded: more takes minutes to read.
MOST_NODES, MOST_EDGES = 200_000, 1_000_000
_UNITS = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "ns": 1.0,
    "us": 1e3,
    "ms": 1e6,
}
#: Components by name, and which of each, on the way to the last.
_Path = list[tuple[str, range]]


class Document(NamedTuple):
    """A document: what it says, what it is annotated with, and its graph.

    Components are nodes "host.0.xpu.3" with their `type`, `device` and `inside` (the device's own name, "host.0").
    Edges have the name of their `link`, its `bandwidth` in bytes per second and `latency` in ns, if it has them.
    """

    path: Path
    text: str
    said: Any
    notes: Mapping[str, str]
    graph: networkx.Graph

    def refuse(self, code: str, said: str, help_: str, name: str = "") -> NoReturn:
        """Raise FlintError at the first line that has `name`."""
        lines = self.text.splitlines() if name else []
        line = next((n for n, text in enumerate(lines, 1) if name in text), 0)
        place = f"{self.path}:{line}" if line else str(self.path)
        raise FlintError(code, f"{self.path.name}: {said}", place=place, help=help_)


def package() -> Any:
    """The module `infragraph`. Raises FlintError FL511 where it is not installed."""
    try:
        import infragraph
    except ImportError as error:
        raise FlintError(
            "FL511",
            f"graphs of InfraGraph need its package: {error}",
            help="pip install 'flint-ir[infragraph]'",
        ) from error
    return infragraph


@lru_cache(maxsize=4)
def read_document(path: Path, data: bytes) -> Document:
    """The document that a file holds: an infrastructure, with annotations or not, or one device.

    Raises FlintError FL510 for what is none, FL511 without the package, FL512 for an edge between what is
    not there, FL518 for a graph that is too large.
    """
    text, said = data.decode("utf-8", "replace"), package().Infrastructure()
    try:
        body, notes = _parts(text)
        said.deserialize(body)
        annotation = package().Annotation().deserialize(notes)
        of_all = {a.attribute: a.value for a in annotation.graph or ()}
        found = Document(path, text, said, of_all, networkx.Graph())
        _Expansion(found).expand()
        for node in annotation.nodes or ():
            name = re.sub(r"\[(\d+)\]", r".\1.", node.name).strip(".")
            if name in found.graph:
                found.graph.nodes[name].update({a.attribute: a.value for a in node.attributes})
        return found
    except FlintError:
        raise
    except Exception as error:  # the package raises whatever it meets
        what = " ".join(str(error).split())[:300] or type(error).__name__
        raise FlintError(
            "FL510",
            f"{path.name} is not an InfraGraph: {what}",
            place=str(path),
            help="give what Infrastructure.serialize() of the package infragraph writes",
        ) from error


def _parts(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
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
    """All components and edges of a document, counted before any is made."""

    def __init__(self, document: Document) -> None:
        self.document, self.said = document, document.said
        self.devices = {d.name: d for d in self.said.devices}
        self.instances = {i.name: i for i in self.said.instances}

    def expand(self) -> None:
        """Fill the graph. Raises FlintError FL512 and FL518."""
        self._require_few()
        for instance in self.said.instances:
            for i in range(instance.count):
                self._add(instance.device, f"{instance.name}.{i}")
        for edge in self.said.edges or ():
            self._add_edge(edge, "", self.said, [self._of_hosts(e) for e in (edge.ep1, edge.ep2)])

    def _require_few(self) -> None:
        for i in self.said.instances:
            self._require(f"device of instance '{i.name}'", i.device, self.devices)
        sizes = {name: self._size(name, ()) for name in self.devices}
        nodes = sum(i.count * sizes[i.device][0] for i in self.said.instances)
        edges = sum(i.count * sizes[i.device][1] for i in self.said.instances)
        for e in self.said.edges or ():
            edges += _edges_of(e.scheme, self._of_hosts(e.ep1), self._of_hosts(e.ep2))
        if nodes > MOST_NODES or edges > MOST_EDGES:
            self.document.refuse(
                "FL518",
                f"the graph has {nodes:,} components and {edges:,} edges",
                f"up to {MOST_NODES:,} and {MOST_EDGES:,} are read: leave out parts that are alike, and"
                " annotate the graph with flint_size: unlimited",
            )

    def _size(self, name: str, inside: tuple[str, ...]) -> tuple[int, int]:
        """Components and edges of a device, with those of the devices in it."""
        if name in inside:
            raise ValueError(f"device '{name}' is a part of itself")
        device, nodes, edges = self.devices[name], 0, 0
        for part in device.components:
            below = (1, 0)
            if part.choice == "device":
                self._require(f"device, of which '{name}' has one", part.name, self.devices)
                below = self._size(part.name, (*inside, name))
            nodes, edges = nodes + part.count * below[0], edges + part.count * below[1]
        for e in device.edges or ():
            edges += _edges_of(e.scheme, self._inside(name, e.ep1), self._inside(name, e.ep2))
        return nodes, edges

    def _add(self, name: str, inside: str) -> None:
        """The components and edges of one device."""
        device, graph = self.devices[name], self.document.graph
        for part in device.components:
            kind = part.custom.type if part.choice == "custom" else part.choice
            for node in (f"{inside}.{part.name}.{i}" for i in range(part.count)):
                if kind == "device":
                    self._add(part.name, node)
                else:
                    graph.add_node(node, type=kind, device=name, inside=inside)
        for edge in device.edges or ():
            ends = [self._inside(name, end) for end in (edge.ep1, edge.ep2)]
            self._add_edge(edge, f"{inside}.", device, ends)

    def _add_edge(self, edge: Any, inside: str, owner: Any, ends: list[_Path]) -> None:
        links = {link.name: link for link in owner.links or ()}
        self._require("link of an edge", edge.link, links)
        physical = links[edge.link].physical
        said = {
            key: self._number(edge.link, getattr(physical, key)) if physical else None
            for key in ("bandwidth", "latency")
        }
        pairs = product if edge.scheme == "many2many" else zip
        for a, b in pairs(*(_names(inside, end) for end in ends)):
            if a != b:
                self.document.graph.add_edge(a, b, link=edge.link, **said)

    def _number(self, link: str, quantity: Any) -> float | None:
        """A bandwidth or a latency in our unit; transfers are of a width that nobody states."""
        unit = str(quantity.choice) if quantity else ""
        value = getattr(quantity, unit) if unit in _UNITS else None
        if value is not None and not (isfinite(value) and value >= 0):
            self.document.refuse(
                "FL510", f"link '{link}' has {value} {unit}", "write a number", link
            )
        return None if value is None else value * _UNITS[unit]

    # Names that edges have.

    def _of_hosts(self, end: Any) -> _Path:
        name = end.instance.partition("[")[0]
        self._require("instance of an edge", end.instance, self.instances, name)
        instance = self.instances[name]
        return [
            (name, self._picked(end.instance, instance.count)),
            *self._named(instance.device, end.component),
        ]

    def _inside(self, device: str, end: Any) -> _Path:
        return self._named(device, f"{end.device}.{end.component}" if end.device else end.component)

    def _named(self, device: str, names: str) -> _Path:
        """What "cx5[0:2].port[0]" means in a device."""
        found: _Path = []
        for element in names.split("."):
            name = element.partition("[")[0]
            owner = self.devices.get(device)
            parts = {c.name: c for c in owner.components} if owner else {}
            self._require(f"component of '{device}'", element, parts, name)
            found.append((name, self._picked(element, parts[name].count)))
            device = name
        return found

    def _picked(self, element: str, count: int) -> range:
        """Which of `count` parts "name[slice]" means."""
        inside = element.partition("[")[2].rstrip("]")
        try:
            bounds = [int(bound) if bound else None for bound in inside.split(":")]
            if len(bounds) == 1 and bounds[0] is not None:
                index = range(count)[bounds[0]]
                return range(index, index + 1)
            return range(count)[slice(*bounds)] if inside else range(count)
        except (ValueError, TypeError, IndexError):
            self._require(f"part of {count}", element, ())
            raise

    def _require(self, what: str, said: str, known: Iterable[str], name: str | None = None) -> None:
        """Raise FlintError FL512 for a name that is not known."""
        there = list(known)
        if (name or said) not in there:
            help_ = f"there are {', '.join(there)}" if there else "slices are Python's: name[0:8]"
            said_ = f"there is no such {what}: {said}{nearest(name or said, there)}"
            self.document.refuse("FL512", said_, help_, said)


def _edges_of(scheme: str | None, *ends: _Path) -> int:
    """How many edges a scheme makes; a ring is made by nobody."""
    if scheme not in ("many2many", "one2one"):
        raise ValueError(f"the package makes no edges of the scheme {scheme}")
    sizes = [prod(len(which) for _, which in end) for end in ends]
    return prod(sizes) if scheme == "many2many" else min(sizes)


def _names(inside: str, path: _Path) -> Iterator[str]:
    for indices in product(*(which for _, which in path)):
        yield inside + ".".join(f"{name}.{i}" for (name, _), i in zip(path, indices, strict=True))
