"""`flint.grow`: a captured workload with more layers, other sizes or another mesh, without its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.share.change import Change
from flint.tools.share.growing.amounts import Amount
from flint.tools.share.growing.causes import without_sizes
from flint.tools.share.growing.entries import Entry, entries_of
from flint.tools.share.growing.held import require_shardings
from flint.tools.share.growing.known import Known
from flint.tools.share.growing.loops import ring_axes, with_rings
from flint.tools.share.growing.plan import Asked, plan, require_variables
from flint.tools.share.growing.refuse import refuse_source, refuse_workload
from flint.tools.share.growing.totals import changes_of
from flint.tools.share.growing.unrolled.repeat import unrolled_layers, with_layers
from flint.tools.share.inputs import Source, read_source
from flint.tools.share.output import refuse_place, write_shared
from flint.tools.share.rules import broken_rules

#: A size, or a factor of what it was: 8192, "8192", "2x".
Size = int | str


@dataclass(frozen=True)
class Grown:
    """A workload that was grown, what it was made of, and what was taken for granted.

    `variables` are those of the original, with their new sizes. `source` is what was read, None for a workload of
    this process.
    """

    workload: Workload
    original: Workload
    variables: tuple[Entry, ...]
    assumed: tuple[str, ...]
    source: Source | None = None

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Totals of one device in one step, before and after."""
        return changes_of(self.original, self.workload)

    def save(self, out: str | Path, *, force: bool = False) -> int:
        """Write a `.flint` file, or a directory of traces by the options of those that were read.

        Gives the number of files. Raises FlintError FL903 for a place in the input, FL501 to FL506 for
        one that cannot be written, FL508 for a file that Flint did not write, without `force`.
        """
        place, source = Path(out), self.source
        refuse_place(place, source.path if source else None, force=force)
        return write_shared(self.workload, place, source.manifest if source else None, force=force)


def grow(
    source: Workload | str | Path,
    *,
    layers: Size | None = None,
    mesh: Mesh | str | None = None,
    width: Size | None = None,
    ffn: Size | None = None,
    heads: Size | None = None,
    kv_heads: Size | None = None,
    head_size: Size | None = None,
    vocabulary: Size | None = None,
    experts: Size | None = None,
    slots: Size | None = None,
    sequence: Size | None = None,
    batch: Size | None = None,
    values: Mapping[str, Size] | None = None,
    split: Mapping[str, str] | None = None,
    keep_global_batch: bool = False,
) -> Grown:
    """A workload as it would be captured with other sizes, as far as its rows tell.

    `source` is a workload, a `.flint` file, or a directory that `flint capture` or `flint anonymize` wrote. Sizes
    are whole ones, over all devices, or factors ("2x"). `mesh` has the same axes. `values` sets variables by name
    (`{"d7": 4096}`): without any change the result lists them, `Grown.variables`. `split` says which axes split one
    (`{"d7": "data+model"}`). Each size changes alone: a model twice as wide has its width, ffn and heads doubled.

    Raises FlintError FL920 (a size), FL921 (an axis of one device), FL922 (a size that does not fit), FL923 (a role that
    the program has not), FL924 (a variable), FL925 (a mesh), FL926 (what cannot be grown).
    """
    roles = {
        "layers": layers,
        "width": width,
        "ffn": ffn,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "vocabulary": vocabulary,
        "experts": experts,
        "slots": slots,
        "sequence": sequence,
        "batch": batch,
    }
    read = None if isinstance(source, Workload) else read_source(source)
    workload = source if isinstance(source, Workload) else refuse_source(read)  # type: ignore[arg-type]
    asked = Wish(
        mesh,
        {name: size for name, size in roles.items() if size is not None},
        dict(values or {}),
        dict(split or {}),
        keep_global_batch,
    )
    return grown(workload, asked, read)


@dataclass(frozen=True)
class Wish:
    """What a user asks for, as it was written."""

    mesh: Mesh | str | None
    roles: Mapping[str, Size]
    values: Mapping[str, Size]
    split: Mapping[str, str]
    keep_global_batch: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything is to be another than it is."""
        return self.mesh is not None or bool(self.roles) or bool(self.values)


def grown(workload: Workload, wish: Wish, source: Source | None = None) -> Grown:
    """The same of a workload that was read."""
    refuse_workload(workload)
    known = known_of(workload, wish.split)
    asked, unrolled = _asked(known, wish)
    planned = plan(known, asked)
    around = ring_axes(known.structure.program)
    found = known.sizes.resized(planned.values, asked.mesh, around)
    found = with_rings(workload, found)
    require_shardings(known, planned, found)
    if unrolled is not None:
        found = replace(found, programs=(with_layers(found.programs[0], unrolled),))
    if wish.changes:
        found = replace(found, programs=tuple(map(without_sizes, found.programs)))
        found = replace(found, metadata=_metadata(workload, found, wish))
        _require_whole(workload, found)
    entries = entries_of(known, planned.values, asked.mesh, unrolled)
    return Grown(found, workload, entries, planned.assumed, source)


def known_of(workload: Workload, split: Mapping[str, str] | None = None) -> Known:
    """What is known of a workload; `split` are axes of variables that the user gives.

    Raises FlintError FL924 for a variable, FL925 for an axis that there is not.
    """
    said = {name: tuple(a for a in axes.split("+") if a) for name, axes in (split or {}).items()}
    for name, axes in said.items():
        for axis in axes:
            if axis not in workload.mesh.names:
                raise FlintError(
                    "FL925",
                    f"--split {name}={'+'.join(axes)}: the mesh has no axis '{axis}'",
                    help=f"the mesh is {workload.mesh}",
                )
    known = Known.of(workload, said)
    require_variables(said, known)
    return known


def _asked(known: Known, wish: Wish) -> tuple[Asked, int | None]:
    """What is asked for in numbers; and the number of layers if they are rows of their own."""
    roles = {
        name: Amount.parse("--" + name.replace("_", "-"), size) for name, size in wish.roles.items()
    }
    numbers = require_variables(wish.values, known)
    values = {
        numbers[name]: Amount.parse(f"--set {name}", size) for name, size in wish.values.items()
    }
    unrolled = None
    if "layers" in roles and "layers" not in known.roles:
        now = unrolled_layers(known.structure.program)
        if now > 1:
            unrolled = roles.pop("layers").of(now, "layers")
    mesh = _mesh(known.workload.mesh, wish.mesh)
    return Asked(mesh, roles, values, wish.keep_global_batch), unrolled


def _mesh(own: Mesh, asked: Mesh | str | None) -> Mesh:
    """The new mesh: the same axes in the same order. Raises FlintError FL101 or FL925."""
    if asked is None:
        return own
    named = isinstance(asked, Mesh) or "=" in asked
    count = 0 if named else len(str(asked).replace(",", "x").split("x"))
    if not named and count != len(own.names):
        raise _other_axes(own, str(asked))
    found = Mesh.parse(asked, None if named else own.names)
    if found.names != own.names:
        raise _other_axes(own, str(found))
    return Mesh(own.names, found.sizes, own.axis_types)


def _other_axes(own: Mesh, asked: str) -> FlintError:
    return FlintError(
        "FL925",
        f"the mesh {asked} has other axes than the workload, which has {', '.join(own.names)}",
        help=f"give {'x'.join('N' for _ in own.names)}, or "
        + ",".join(f"{name}=N" for name in own.names),
    )


def _metadata(before: Workload, after: Workload, wish: Wish) -> dict[str, Any]:
    """Facts that are still true, and what changed. The source is not that of the grown program."""
    found = {k: v for k, v in after.metadata.items() if k not in ("source", "entry", "settings")}
    changed: dict[str, Any] = {
        name: str(size) for name, size in {**wish.roles, **wish.values}.items()
    }
    if before.mesh != after.mesh:
        changed["mesh"] = [list(before.mesh.sizes), list(after.mesh.sizes)]
    if not changed:
        return dict(before.metadata)
    return {
        **found,
        "producer": "flint grow",
        "grown": [*before.metadata.get("grown", []), changed],
    }


def _require_whole(before: Workload, after: Workload) -> None:
    """Raise FlintError FL922 for a result that breaks what its original kept."""
    try:
        after.verify()
    except AssertionError as error:
        raise _inconsistent(str(error)) from error
    kept = {b.rule for b in broken_rules(before)}
    broken = [b for b in broken_rules(after) if b.rule not in kept]
    if broken:
        raise _inconsistent(str(broken[0]))


def _inconsistent(why: str) -> FlintError:
    return FlintError(
        "FL922",
        f"these sizes do not fit to each other: {why}",
        help="change fewer of them at once to see which one it is",
    )
