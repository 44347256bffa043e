"""Redaction: the workload with neutral words for its names, and estimates that are equal to the last bit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.backends.cost.simulate.layers import numbered_prefix
from flint.cluster.devices import neutral_device
from flint.ir.columns import in_order_of_use
from flint.ir.made_by import StoodIn
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMN_TYPES, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.fusion.roles import kernel_prefix
from flint.tools.share.leaks.vocabulary import is_public_opcode, is_public_value, op_word

# Neutral scopes that estimates read as they read the original ones.
#
# Two things of a scope change an estimate: which layer it says that a row is of (its first component
# that ends with a number, `backends.cost.simulate.layers`) and which kernel (its first component that
# begins with `kernel.`, `passes.fusion.roles`). Rows that are alike in both have one neutral scope.


def neutral_scopes(scopes: Iterable[str]) -> dict[str, str]:
    """For each scope its neutral word; "" where it says neither a layer nor a kernel."""
    layers: dict[str, int] = {}
    kernels: dict[str, int] = {}
    return {scope: _neutral(scope, layers, kernels) for scope in dict.fromkeys(scopes)}


def _neutral(scope: str, layers: dict[str, int], kernels: dict[str, int]) -> str:
    layer, kernel = numbered_prefix(scope), kernel_prefix(scope)
    if not kernel:
        return _layer(layer, layers) if layer else ""
    number = kernels.setdefault(kernel, len(kernels))
    if layer == kernel:
        return f"kernel.{number}"  # it ends with a number: a layer by itself, too
    word = f"kernel.{number}_"
    if not layer:
        return word
    parts = [_layer(layer, layers), word]
    return "/".join(parts if len(layer) < len(kernel) else reversed(parts))


def _layer(prefix: str, layers: dict[str, int]) -> str:
    return f"scope{layers.setdefault(prefix, len(layers))}"


# Which neutral word each name of a workload becomes: the same one for the same name, in all programs.

#: Streams that mean something wherever they are: the device's, the host's and copies between them.
_STREAMS = re.compile(r"(compute|counters|host|to host|from host)(?: \(\d{1,4}\))?")


@dataclass(frozen=True)
class Words:
    """What names of a workload become. Names that are not in a table are dropped."""

    axes: Mapping[str, str]
    streams: Mapping[str, str]
    scopes: Mapping[str, str]
    names: Mapping[str, str]
    places: Mapping[str, str]

    @classmethod
    def of(cls, workload: Workload) -> Words:
        """Numbers in the order in which rows use what they stand for."""
        programs = workload.programs
        return cls(
            {name: f"axis{n}" for n, name in enumerate(workload.mesh.names)},
            _streams(s for p in programs for s in p.streams),
            neutral_scopes(s for p in programs for s in _used(p, "scope")),
            _names(s for p in programs for s in _used(p, "name")),
            _numbered("file ", (s for p in programs for s in _places(p))),
        )

    def mesh(self, mesh: Mesh) -> Mesh:
        """The mesh with neutral axes."""
        return Mesh(tuple(self.axes[name] for name in mesh.names), mesh.sizes)

    def refs(self, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
        """Axes, or parts of axes, by their neutral names."""
        return tuple(AxisRef(self.axes[a.name], a.pre_size, a.size) for a in axes)


def _numbered(word: str, names: Iterable[str]) -> dict[str, str]:
    found = dict.fromkeys(filter(None, names))
    return {"": "", **{name: f"{word}{n}" for n, name in enumerate(found)}}


def _used(program: Program, column: str) -> list[str]:
    """Strings of a column in the order of their first row."""
    used, first = np.unique(getattr(program, column), return_index=True)
    return [program.strings[at] for at in used[np.argsort(first)].tolist()]


def _places(program: Program) -> list[str]:
    """Lines of collectives: gathers of one line may be of one layer, see `simulate.layers`."""
    collectives = np.flatnonzero(program.kind == Kind.COLLECTIVE)
    return _used(program.with_rows(location=program.location[collectives]), "location")


def _streams(names: Iterable[str]) -> dict[str, str]:
    found = list(dict.fromkeys(names))
    other = [name for name in found if not _STREAMS.fullmatch(name)]
    return {name: name for name in found} | {name: f"stream {n}" for n, name in enumerate(other)}


def _names(names: Iterable[str]) -> dict[str, str]:
    """Arguments by family, which is what memory tells apart: the name up to its first bracket or dot."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    found = {"": ""}
    for name in dict.fromkeys(filter(None, names)):
        family = name.split("[")[0].split(".")[0]
        number = families.setdefault(family, len(families))
        member = members[family] = members.get(family, -1) + 1
        found[name] = f"argument{number}[{member}]"
    return found


# What of a workload's metadata stays: facts that estimates read, without what identifies.

#: Texts that stay where they are of the public vocabulary: how Flint made the workload.
_TEXTS = ("partitioner", "granularity", "profile")
#: Of a pipeline: its numbers. What stages are called is not among them.
_OF_PIPELINE = ("schedule", "microbatches", "chunks")
_OF_STAGE = ("stage", "in_flight", "saved_bytes_per_microbatch")


def neutral_metadata(metadata: Mapping[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
    """Metadata by a list of what may stay; anything else is dropped.

    `axes` are new names of mesh axes.
    """
    found: dict[str, Any] = {"producer": "flint", "name": "workload 0"}
    found |= {k: metadata[k] for k in _TEXTS if is_public_value(str(metadata.get(k) or "?"))}
    if metadata.get("pipeline"):
        found["pipeline"] = _pipeline(metadata["pipeline"], axes)
    if metadata.get("pools"):
        pools = metadata["pools"]
        found["pools"] = {"axis": axes[pools["axis"]]} | {
            k: [int(n) for n in pools[k]] for k in ("prefill", "decode")
        }
    if metadata.get("compiler"):
        found["compiler"] = _compiler(metadata["compiler"])
    stack = StoodIn.from_json(metadata.get("stood_in") or {}).stack
    if stack and is_public_value(stack):
        found["stood_in"] = StoodIn(stack=stack).to_json()
    if "model_share" in metadata:
        found["model_share"] = float(metadata["model_share"])
    if metadata.get("measured"):
        measured = metadata["measured"]
        found["measured"] = {**measured, "device": neutral_device(str(measured["device"]))}
    return found


def _pipeline(about: Mapping[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
    found = {k: about[k] for k in _OF_PIPELINE if k in about and is_public_value(str(about[k]))}
    found["axis"] = axes.get(str(about.get("axis")), "")
    positions = about.get("positions") or []
    return {**found, "positions": [[_stage(stage) for stage in p] for p in positions]}


def _stage(about: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a stage, and a label that is its number."""
    numbers = {k: int(about[k]) for k in _OF_STAGE if k in about}
    return {**numbers, "label": f"stage{numbers.get('stage', 0)}"}


def _compiler(about: Mapping[str, Any]) -> dict[str, Any]:
    """Compiler, chip and memory; the version and the topology name an installation."""
    public = {k: about[k] for k in ("name", "chip") if is_public_value(str(about[k]))}
    return {
        "name": "",
        "chip": "",
        **public,
        "version": "",
        "topology": "",
        "memory": about.get("memory"),
    }


def redacted(workload: Workload) -> Workload:
    """The level `names`: names and sources gone; structure, shapes, bytes, groups and durations as they are.

    Axes are `axis0`, ..., rank classes `class0`, ..., operators of nobody's public vocabulary `op.CLASS`.
    What estimates read of names keeps its effect: which layer and kernel rows are of, which arguments are
    of one family, which gathers are of one line. Of the metadata stays what `names.metadata` lists.
    Redacting twice changes nothing more.
    """
    words = Words.of(workload)
    mesh = words.mesh(workload.mesh)
    return Workload(
        mesh,
        tuple(_program(p, mesh, words) for p in workload.programs),
        tuple(_rank_class(c, n, workload, words) for n, c in enumerate(workload.classes)),
        neutral_metadata(workload.metadata, words.axes),
    )


def _rank_class(one: RankClass, number: int, workload: Workload, words: Words) -> RankClass:
    name = "all" if len(workload.classes) == 1 else f"class{number}"
    where = {words.axes[axis]: tuple(at) for axis, at in one.where.items()}
    return RankClass(name, one.program, where, one.ranks)


def _program(program: Program, mesh: Mesh, words: Words) -> Program:
    regions = tuple(replace(r, name="", location="") for r in program.regions)
    groups = tuple(replace(g, axes=words.refs(g.axes)) for g in program.groups)
    routes = tuple(replace(r, axes=words.refs(r.axes)) for r in program.routes)
    streams = tuple(words.streams[s] for s in program.streams)
    tables: dict[str, Any] = {"groups": groups, "routes": routes, "regions": regions}
    columns = {**_strings(program, words), **_opcodes(program)}
    found = replace(program, mesh=mesh, streams=streams, **tables, **columns)
    # Streams keep their order: where two are alike it says which one goes first.
    ordered = in_order_of_use(found)
    return replace(ordered, stream=found.stream, streams=found.streams)


def _strings(program: Program, words: Words) -> dict[str, Any]:
    """Columns and table of strings; of locations those of collectives alone, and no causes."""
    gathers = program.kind == Kind.COLLECTIVE
    table: dict[str, int] = {"": 0}
    found: dict[str, Any] = {"cause": np.zeros(len(program), COLUMN_TYPES["cause"])}
    for column, neutral in (
        ("scope", words.scopes),
        ("name", words.names),
        ("location", words.places),
    ):
        renamed = [neutral.get(text, "") for text in program.strings]
        number = np.array([table.setdefault(text, len(table)) for text in renamed])
        found[column] = number[getattr(program, column)].astype(COLUMN_TYPES[column])
    found["location"] = np.where(gathers, found["location"], 0).astype(COLUMN_TYPES["location"])
    return {**found, "strings": tuple(table)}


def _opcodes(program: Program) -> dict[str, Any]:
    """The public opcodes as they are, others by the class of each row that has them."""
    public = np.array([is_public_opcode(name) for name in program.opcodes], dtype=np.bool_)
    kept = [name for name, is_public in zip(program.opcodes, public, strict=True) if is_public]
    numbers = {name: n for n, name in enumerate(kept)}
    column = np.array([numbers.get(name, 0) for name in program.opcodes])[program.opcode]
    for row in np.flatnonzero(~public[program.opcode]).tolist():
        word = op_word(OpClass(int(program.op[row])))
        column[row] = numbers.setdefault(word, len(numbers))
    return {"opcode": column.astype(COLUMN_TYPES["opcode"]), "opcodes": tuple(numbers)}
