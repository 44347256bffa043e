"""Write a workload as Chakra execution traces, one file per rank."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flint.backends.chakra.durations import Timing
from flint.backends.chakra.encode import Encoder, metadata_record
from flint.backends.chakra.groups import GroupNumbers
from flint.backends.chakra.lower import Names, TraceNodes, lower, ranks_differ
from flint.backends.chakra.selection import select_ranks
from flint.backends.chakra.simulator_files import simulator_files
from flint.errors import FlintError, nearest
from flint.files import directory_atomically
from flint.program import Int64s
from flint.workload import Workload

#: Version of manifest.json and of the conventions in the traces.
SCHEMA = "flint.chakra/1"
#: What a file system answers that has no hard links (left), so that a copy is written instead.
_NO_LINK = frozenset(
    {errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
)

#: Called with (ranks written, ranks in all).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class WriteReport:
    """What `write` left in `directory`.

    `trace_bytes` counts every trace, `disk_bytes` those that are not hard links to another.
    `nodes` is the number of nodes of each rank class, before a rank leaves out its missing half of
    a permutation.
    """

    directory: Path
    files: int
    ranks: int
    trace_bytes: int
    disk_bytes: int
    nodes: dict[str, int]


@dataclass
class _Class:
    """One rank class while it is written."""

    name: str
    ranks: Int64s
    encoder: Encoder
    nodes: TraceNodes
    trace_bytes: int = 0
    disk_bytes: int = 0
    sha256: str = ""


def write(
    workload: Workload,
    directory: str | Path,
    *,
    prefix: str = "trace",
    ranks: str = "all",
    tensor_size: str = "total",
    groups: str = "names",
    link: bool = False,
    keep: Workload | None = None,
    timing: Timing | None = None,
    progress: Progress | None = None,
) -> WriteReport:
    """Write `prefix`.<rank>.et, the group file and the simulator's configuration to `directory`.

    `ranks`: `all`, `classes` (one rank of each class) or a list such as `0,8-15`.
    `tensor_size`: `total` bytes read and written (ASTRA-sim master), or `output` bytes written
    (its branch chakra_main_paper). `groups`: `names` numbers every group (pg_name), `dims` says
    which network dimensions a collective over whole axes spans (involved_dim), and numbers the
    rest. `link`: ranks of equal bytes become hard links where the file system has them. `keep`: what
    workload.flint holds, where `workload` is a coarser form of it made for writing.
    `timing`: what a cluster says; without it durations are 0 and the hardware made up.

    Raises FlintError FL501 (directory is someone else's), FL502 (cannot write, disk full), FL503
    (no such ranks), FL504 (an option has no such value), FL505 (ASTRA-sim ignores group files
    under this path). The directory appears when it is complete, or not at all.
    """
    _check_option("tensor_size", tensor_size, ("total", "output"))
    _check_option("groups", groups, ("names", "dims"))
    _check_prefix(prefix)
    target = Path(directory)
    _refuse_ignored_path(target)
    selected = select_ranks(ranks, workload)
    names = Names(GroupNumbers(workload.mesh), groups == "dims", ranks_differ(workload))
    metadata = {"mesh": str(workload.mesh), "producer": "flint", "schema": SCHEMA}
    header = metadata_record({**metadata, "tensor_size": tensor_size})
    classes = _classes(workload, selected, names, header, tensor_size, timing)
    with directory_atomically(target) as working:
        _write_traces(classes, working, prefix, link, progress)
        options = {
            "granularity": workload.metadata.get("granularity", "op"),
            "groups": groups,
            "link": link,
            "ranks": ranks,
            "tensor_size": tensor_size,
            **({"cluster": timing.cluster} if timing else {}),
        }
        others = {
            "comm_group.json": names.groups.to_json(),
            "workload.flint": (keep or workload).to_bytes(),
            **simulator_files(workload.mesh, prefix, timing.hardware if timing else None),
        }
        others["manifest.json"] = _manifest(workload, prefix, options, classes, list(others))
        for name, data in others.items():
            _write_file(working / name, data)
    return WriteReport(
        target,
        files=len(selected) + len(others),
        ranks=len(selected),
        trace_bytes=sum(c.trace_bytes for c in classes),
        disk_bytes=sum(c.disk_bytes for c in classes),
        nodes={c.name: len(c.nodes) for c in classes},
    )


def _check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise FlintError(
            "FL504",
            f"{name} has no value '{value}'{nearest(value, known)}",
            help=f"choose one of {', '.join(known)}",
        )


def _check_prefix(prefix: str) -> None:
    if not prefix or "/" in prefix or os.sep in prefix or prefix.startswith("."):
        raise FlintError(
            "FL504", f"prefix '{prefix}' is not a file name", help="the default is trace"
        )


def _refuse_ignored_path(directory: Path) -> None:
    if "empty" in str(directory.resolve()):
        raise FlintError(
            "FL505",
            f"ASTRA-sim ignores a group file whose path contains 'empty': {directory}",
            help="choose another directory with -o",
        )


def _classes(
    workload: Workload,
    selected: Int64s,
    names: Names,
    header: bytes,
    tensor_size: str,
    timing: Timing | None,
) -> list[_Class]:
    """Every class, lowered in order so that group numbers do not depend on the selected ranks."""
    durations = timing.duration_ns if timing else [None] * len(workload.programs)
    lowered = [
        lower(program, names, ns) for program, ns in zip(workload.programs, durations, strict=True)
    ]
    of_rank = workload.class_of_ranks()[selected]
    encoders = {
        i: Encoder(workload.programs[i], nodes, header, tensor_size)
        for i, nodes in enumerate(lowered)
    }
    return [
        _Class(c.name, selected[of_rank == i], encoders[c.program], lowered[c.program])
        for i, c in enumerate(workload.classes)
    ]


def _write_traces(
    classes: list[_Class], working: Path, prefix: str, link: bool, progress: Progress | None
) -> None:
    total = sum(len(c.ranks) for c in classes)
    done = 0
    for each in classes:
        for rank, data in _files(each, working / prefix, link):
            if rank == each.ranks[0]:
                each.sha256 = hashlib.sha256(data).hexdigest()
            done += 1
            if progress is not None and (done % 64 == 0 or done == total):
                progress(done, total)


def _files(each: _Class, stem: Path, link: bool) -> Iterator[tuple[int, bytearray]]:
    """Write the class's files, those of one template after another; yields what was written."""
    signatures = each.encoder.signatures()[each.ranks]
    kinds, kind = np.unique(signatures, axis=0, return_inverse=True)
    contents = each.encoder.contents()
    first_of: dict[int, str] = {}
    for index, widths in enumerate(kinds):
        template = each.encoder.template(widths)
        for rank in each.ranks[kind.reshape(-1) == index].tolist():
            data = template.fill(rank)
            path = f"{stem}.{rank}.et"
            content = int(contents[rank])
            each.trace_bytes += len(data)
            if not (link and content in first_of and _link(first_of[content], path)):
                _write_file(path, data)
                each.disk_bytes += len(data)
                first_of[content] = path
            yield rank, data


def _link(source: str, path: str) -> bool:
    """Make `path` a hard link; False where the file has all the links it may have, or none may."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _write_file(path: str | Path, data: bytes | bytearray) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            written = os.write(handle, rest)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]
    finally:
        os.close(handle)


def _manifest(
    workload: Workload,
    prefix: str,
    options: dict[str, Any],
    classes: list[_Class],
    others: list[str],
) -> bytes:
    document = {
        "schema": SCHEMA,
        "mesh": workload.mesh.shape,
        "prefix": prefix,
        "options": options,
        "ranks": sum(len(c.ranks) for c in classes),
        "trace_bytes": sum(c.trace_bytes for c in classes),
        "files": sorted(others),
        "classes": [
            {
                "name": c.name,
                "first_rank": int(c.ranks[0]) if len(c.ranks) else None,
                "ranks": len(c.ranks),
                "nodes": len(c.nodes),
                "trace_bytes": c.trace_bytes,
                "sha256_of_first_rank": c.sha256,
            }
            for c in classes
        ],
    }
    return (json.dumps(document, indent=2) + "\n").encode()
