"""Writing what is shared: a `.flint` file, or a directory of traces as `flint capture -o` makes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flint.backends.chakra.manifest import Manifest
from flint.backends.chakra.writing.output import refuse_output
from flint.cluster.load import preset_names
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.ir.workload import Workload
from flint.tools.share.inputs import ShareInput
from flint.tracing import Trace


def refuse_place(out: Path, source: Path | None, *, force: bool = False) -> None:
    """Raise FlintError before work whose result could not, or must not, be written.

    FL903: `out` is the input, in it or around it; FL501 to FL506 as for any directory of traces; FL508 for a
    file that Flint did not write, without `force`.
    """
    if source is not None:
        refuse_input(out, source)
    if out.suffix == ".flint":
        refuse_to_replace(out, OutputKind.WORKLOAD, force=force)
    else:
        refuse_output(out)


def refuse_input(out: Path, source: Path) -> None:
    """Raise FlintError FL903 for a place that is an input, in it or around it."""
    there, here = os.path.realpath(out), os.path.realpath(source)
    parts = os.path.commonpath([there, here])
    if parts in (there, here) and (there == here or os.path.isdir(here)):
        raise FlintError(
            "FL903",
            f"{out} would be written into {source}, which is an input",
            help="give another place",
        )


def save_shared(
    workload: Workload, out: str | Path, source: ShareInput | None, *, force: bool = False
) -> int:
    """Write a workload that was made of `source` (None: one of this process); gives the number of files.

    A directory has traces by the options of those that were read: granularity, groups, ranks, durations of a
    preset. Raises FlintError FL903 for a place in the input, FL501 to FL506 for one that cannot be written,
    FL508 for a file that Flint did not write, without `force`.
    """
    place = Path(out)
    refuse_place(place, source.path if source else None, force=force)
    if place.suffix == ".flint":
        write_output(place, workload.to_bytes(), OutputKind.WORKLOAD, force=force)
        return 1
    return Trace(workload, {}).save(place, **_options(source.manifest if source else None)).files


def is_timed_elsewhere(like: Manifest | None) -> bool:
    """Whether durations of traces are those of a machine that only its owner can say again."""
    return like is not None and like.options.cluster not in (None, *preset_names())


def _options(like: Manifest | None) -> dict[str, Any]:
    if like is None:
        return {}
    o = like.options
    found: dict[str, Any] = {"groups": o.groups, "link": o.link, "ranks": o.ranks}
    found |= {"granularity": o.granularity, "tensor_size": o.tensor_size}
    if o.cluster in preset_names():
        found["cluster"] = o.cluster
    return found
