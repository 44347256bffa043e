"""What Flint writes into the files of a trace directory, whatever the workload."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from flint.backends.chakra.schema import NodeType
from flint.tools.share.leaks import vocabulary
from flint.tools.share.leaks.words import runs

#: Files of a directory of traces, beside the traces.
FILE_NAMES = frozenset(
    {
        *("README.txt", "comm_group.json", "manifest.json", "memory.json", "workload.flint"),
        *("network.yml", "network-1d.yml", "system.json", "system-1d.json"),
    }
)
#: A rank's trace.
TRACE_NAME = re.compile(r"trace\.\d{1,9}\.et")
#: Names of attributes of trace nodes and of a trace, as Chakra's readers know them.
ATTRIBUTES = frozenset(
    {
        *("is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_tag"),
        *("comm_src", "comm_dst", "pg_name", "involved_dim", "mesh", "producer", "schema"),
    }
)
_NODES = frozenset(f"{kind.name}_NODE" for kind in NodeType)
_MESH = re.compile(r"[^=,]+=\d+(,[^=,]+=\d+)*")
_DIGEST = re.compile(r"(sha256:|crc32:)?[0-9a-f]{8,64}")
#: Words of manifests and of networks that no file for a small mesh has.
_MORE_WORDS = frozenset(
    {
        *("schema", "flint", "chakra", "mesh", "prefix", "options", "granularity", "groups"),
        *("names", "dims", "link", "all", "total", "output", "tensor", "classes", "first", "nodes"),
        *("name", "files", "bytes", "crc32", "sha256", "manifest", "trace", "cluster", "switch"),
        *("fullyconnected", "duration", "those", "producer", "true", "false", "null", "op"),
    }
)


def is_public_file_name(name: str) -> bool:
    """Whether a file of a trace directory has a name that Flint gives."""
    return name in FILE_NAMES or bool(TRACE_NAME.fullmatch(name))


def is_public_node(name: str) -> bool:
    """Whether a node's name is its type, a public opcode, and perhaps a generated word."""
    kind, _, rest = name.partition(" ")
    opcode, _, scope = rest.partition(" ")
    if kind not in _NODES:
        return vocabulary.is_neutral_name(name)
    return not rest or any(
        vocabulary.is_public_opcode(o) and vocabulary.is_neutral_name(s)
        for o, s in ((opcode, scope), (rest, ""))
    )


def is_public_trace_value(text: str) -> bool:
    """Whether a text among the attributes of a trace is Flint's own, or the mesh of generated axes."""
    if _MESH.fullmatch(text):
        axes = [part.partition("=")[0] for part in text.split(",")]
        return all(map(vocabulary.is_neutral_name, axes))
    return vocabulary.is_public_value(text) or is_public_line(text)


def is_public_line(text: str) -> bool:
    """Whether all words of a line are of Flint's files, numbers, or parts of generated names."""
    if _DIGEST.fullmatch(text):
        return True
    return all(run.isdigit() or run in _words() or _is_generated(run) for run in runs(text))


def _is_generated(run: str) -> bool:
    return vocabulary.is_neutral_name(run) or run in vocabulary.METADATA_VALUES


@cache
def _words() -> frozenset[str]:
    """Words of the files that Flint writes for meshes of generated axes, and of its clusters."""
    texts = [*FILE_NAMES, *ATTRIBUTES, *_NODES, *_files(), *_clusters()]
    return _MORE_WORDS | {run for text in texts for run in runs(text)}


def _files() -> list[str]:
    from dataclasses import replace

    from flint.backends.chakra.writing.simulator_files import (
        placeholder_hardware,
        simulator_files,
    )
    from flint.ir.mesh import Mesh

    found: list[str] = []
    for sizes in ((1, 1), (2, 1), (2, 4)):
        mesh = Mesh(("axis0", "axis1"), sizes)
        hardware = placeholder_hardware(mesh)
        alike = replace(hardware, dimensions=(hardware.dimensions[0],) * 2, has_durations=True)
        for told in (hardware, alike):
            found += [d.decode() for d in simulator_files(mesh, "trace", told).values()]
    return found


def _clusters() -> list[str]:
    """Names of the clusters that come with Flint: public machines."""
    presets = files("flint.cluster") / "presets"
    return [entry.name.removesuffix(".toml") for entry in presets.iterdir()]
