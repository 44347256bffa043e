"""Write a workload as Chakra execution traces, one file per rank."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from flint.backends.chakra.manifest import (
    NAME,
    ListedClass,
    ListedFile,
    ListedTraces,
    Manifest,
    Options,
    digest,
    ranks_text,
)
from flint.backends.chakra.writing.encode import Encoder, metadata_record
from flint.backends.chakra.writing.lower import (
    LoweredNodes,
    Names,
    communicates,
    lower,
    micros_of,
    moves_memory,
)
from flint.backends.chakra.writing.order import in_one_order
from flint.backends.chakra.writing.output import refuse_ignored_path, replaced_directory
from flint.backends.chakra.writing.simulator_files import (
    GroupNumbers,
    Timing,
    placeholder_hardware,
    simulator_files,
)
from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.program import Int64s
from flint.ir.workload import Workload

#: Version of the conventions in the traces.
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
    `nodes` is the number of nodes of each rank class, before a rank omits its missing half of
    a permutation. `written` is the workload that the nodes are of.
    """

    directory: Path
    files: int
    ranks: int
    trace_bytes: int
    disk_bytes: int
    nodes: dict[str, int]
    written: Workload = field(repr=False)


@dataclass
class _WrittenClass:
    """One rank class while it is written.

    `files` are the size and digest of the bytes that each group of ranks holds, with the ranks.
    """

    name: str
    ranks: Int64s
    encoder: Encoder
    nodes: LoweredNodes
    trace_bytes: int = 0
    disk_bytes: int = 0
    files: dict[tuple[int, str], list[int]] = field(default_factory=dict)


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
    rest, `p2p` writes collectives as sends and receives. `link`: ranks of equal bytes become hard links where the file system has them. `keep`: what
    workload.flint holds, where `workload` is a coarser form of it made for writing.
    `timing`: what a cluster says; without it durations are 0 and the hardware made up.

    A trace that Flint wrote to `directory` is replaced when the new one is complete; what Flint did
    not write is not touched. Raises FlintError FL501 (the directory holds something else), FL502
    (cannot write, disk full), FL503 (no such ranks), FL504 (an option has no such value), FL505
    (ASTRA-sim ignores group files under this path), FL506 (another process writes there).
    """
    _check_option("tensor_size", tensor_size, ("total", "output"))
    _check_option("groups", groups, ("names", "dims", "p2p"))
    _check_prefix(prefix)
    target = Path(directory)
    refuse_ignored_path(target)
    selected = select_ranks(ranks, workload)
    only = tensor_size == "output"  # who adds up what producers write
    names = Names(GroupNumbers(workload.mesh), groups == "dims", groups == "p2p", only)
    metadata = {"mesh": str(workload.mesh), "producer": "flint", "schema": SCHEMA}
    header = metadata_record({**metadata, "tensor_size": tensor_size})
    classes = _classes(workload, selected, names, header, tensor_size, timing)
    with replaced_directory(target) as working:
        _write_traces(classes, working, prefix, link, progress)
        options = Options(
            granularity=workload.metadata.get("granularity", "op"),
            groups=groups,
            link=link,
            ranks=ranks,
            tensor_size=tensor_size,
            cluster=(timing.cluster or None) if timing else None,
        )
        others = {
            "comm_group.json": names.groups.to_json(),
            "workload.flint": (keep or workload).to_bytes(),
            **_simulator_files(workload.mesh, prefix, timing, names, classes),
        }
        _write_others(working, others, _manifest(workload, prefix, options, classes, others))
    files = len(selected) + len(others) + 1
    return _report(target, files, len(selected), classes, workload)


def _simulator_files(
    mesh: Mesh, prefix: str, timing: Timing | None, names: Names, classes: list[_WrittenClass]
) -> dict[str, bytes]:
    return simulator_files(
        mesh,
        prefix,
        timing.hardware if timing else None,
        names_dimensions=names.use_dimensions,
        moves_memory=any(moves_memory(c.nodes.type).any() for c in classes),
    )


def _write_others(working: Path, others: Mapping[str, bytes], manifest: Manifest) -> None:
    """Write what stands beside the traces, and then the manifest: whole, when all is there."""
    for name, data in others.items():
        _write_file(working / name, data)
    _write_file(working / "manifest", manifest.to_bytes())
    os.rename(working / "manifest", working / NAME)


def _report(
    target: Path, files: int, ranks: int, classes: Sequence[_WrittenClass], written: Workload
) -> WriteReport:
    return WriteReport(
        target,
        files,
        ranks,
        trace_bytes=sum(c.trace_bytes for c in classes),
        disk_bytes=sum(c.disk_bytes for c in classes),
        nodes={c.name: len(c.nodes) for c in classes},
        written=written,
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


def _classes(
    workload: Workload,
    selected: Int64s,
    names: Names,
    header: bytes,
    tensor_size: str,
    timing: Timing | None,
) -> list[_WrittenClass]:
    """Every class, lowered in order so that group numbers do not depend on the selected ranks."""
    durations = timing.duration_ns if timing else [None] * len(workload.programs)
    hardware = timing.hardware if timing else placeholder_hardware(workload.mesh)
    lowered = in_one_order(
        workload.programs,
        [lower(p, names, ns) for p, ns in zip(workload.programs, durations, strict=True)],
        names,
        hardware,
    )
    of_rank = workload.class_of_ranks()[selected]
    encoders = {
        i: Encoder(workload.programs[i], nodes, header, tensor_size)
        for i, nodes in enumerate(lowered)
    }
    found = []
    for i, c in enumerate(workload.classes):
        encoder = encoders[c.program]
        if timing is not None and i in timing.of_class:
            program, nodes = workload.programs[c.program], encoder.nodes
            micros = micros_of(program, nodes.row, timing.of_class[i])
            late = replace(nodes, duration_micros=np.where(communicates(nodes.type), 0, micros))
            encoder = Encoder(program, late, header, tensor_size)
        found.append(_WrittenClass(c.name, selected[of_rank == i], encoder, encoder.nodes))
    return found


def _write_traces(
    classes: list[_WrittenClass], working: Path, prefix: str, link: bool, progress: Progress | None
) -> None:
    total = sum(len(c.ranks) for c in classes)
    done = 0
    for each in classes:
        for _ in _files(each, working / prefix, link):
            done += 1
            if progress is not None and (done % 64 == 0 or done == total):
                progress(done, total)


def _files(each: _WrittenClass, stem: Path, link: bool) -> Iterator[None]:
    """Write the class's files, those of one template after another; yields after each."""
    signatures = each.encoder.signatures()[each.ranks]
    kinds, kind = np.unique(signatures, axis=0, return_inverse=True)
    contents = each.encoder.contents()
    first_of: dict[int, str] = {}
    listed: dict[int, list[int]] = {}
    for index, widths in enumerate(kinds):
        template = each.encoder.template(widths)
        for rank in each.ranks[kind.reshape(-1) == index].tolist():
            data = template.fill(rank)
            path = f"{stem}.{rank}.et"
            content = int(contents[rank])
            each.trace_bytes += len(data)
            if content not in listed:
                key = len(data), digest("crc32", [data])
                listed[content] = each.files.setdefault(key, [])
            listed[content].append(rank)
            if not (link and content in first_of and _link(first_of[content], path)):
                _write_file(path, data)
                each.disk_bytes += len(data)
                first_of[content] = path
            yield


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
    options: Options,
    classes: list[_WrittenClass],
    others: Mapping[str, bytes],
) -> Manifest:
    traces: dict[tuple[int, str], list[int]] = {}
    for each in classes:
        for key, ranks in each.files.items():
            traces.setdefault(key, []).extend(ranks)
    return Manifest(
        mesh=workload.mesh.shape,
        prefix=prefix,
        options=options,
        ranks=sum(len(c.ranks) for c in classes),
        trace_bytes=sum(c.trace_bytes for c in classes),
        classes=tuple(
            ListedClass(
                name=c.name,
                first_rank=int(c.ranks[0]) if len(c.ranks) else None,
                ranks=len(c.ranks),
                nodes=len(c.nodes),
                trace_bytes=c.trace_bytes,
            )
            for c in classes
        ),
        files=tuple(
            ListedFile(name=name, size_bytes=len(data), digest=digest("sha256", [data]))
            for name, data in sorted(others.items())
        ),
        traces=tuple(
            ListedTraces(ranks=ranks_text(ranks), size_bytes=size, digest=found)
            for (size, found), ranks in sorted(traces.items(), key=lambda item: min(item[1]))
        ),
    )


# Which ranks to write: `all`, `classes` or a list such as `0,8-15`.


def select_ranks(spec: str, workload: Workload) -> Int64s:
    """Ranks that `spec` names, ascending. `classes` is the first rank of each rank class.

    Raises FlintError FL503 for anything else and for ranks that the mesh does not have.
    """
    size = workload.mesh.size
    if spec == "all":
        return np.arange(size, dtype=np.int64)
    if spec == "classes":
        _, first = np.unique(workload.class_of_ranks(), return_index=True)
        return np.sort(first).astype(np.int64)
    chosen: set[int] = set()
    for part in spec.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if found is None:
            raise _refuse(spec, f"'{part.strip()}' is neither a rank nor a range")
        low = int(found[1])
        high = int(found[2]) if found[2] else low
        if high < low or high >= size:
            raise _refuse(spec, f"the mesh has ranks 0 to {size - 1}")
        chosen.update(range(low, high + 1))
    return np.array(sorted(chosen), dtype=np.int64)


def _refuse(spec: str, why: str) -> FlintError:
    return FlintError(
        "FL503",
        f"cannot select ranks '{spec}': {why}",
        help="write all, classes, or ranks and ranges such as 0,8-15",
    )
