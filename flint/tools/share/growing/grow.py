"""`flint.grow`: a captured workload with more layers, other sizes or another mesh, without its source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flint.backends.cost.memory.memory import step_memory
from flint.errors import FlintError
from flint.ir.columns import compact_tables
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Flag, Program
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.requests.keywords import refuse_unknown, takes_fields
from flint.tools.share.growing.known import Known, SizeEntry, entries_of
from flint.tools.share.growing.plan import Amount, AskedSizes, Plan, plan, require_variables
from flint.tools.share.growing.repeat import unrolled_layers, with_layers
from flint.tools.share.growing.structure import ring_axes, with_rings
from flint.tools.share.inputs import ShareInput, ShareInputKind, read_source
from flint.tools.share.output import save_shared
from flint.tools.share.requests import GrowRequest
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.totals import Change

# Causes of collectives without the sizes that they were made for.

#: Sizes in the text of a Shardy rule: ` {i=4, j=768}`.
_SIZES = re.compile(r" ?\{\w+=\d+(?:, \w+=\d+)*\}")


def without_sizes(program: Program) -> Program:
    """The program whose causes name dimensions, and not how long they were."""
    used = np.unique(program.cause).tolist()
    told = {number: _SIZES.sub("", program.strings[number]) for number in used}
    strings = (*program.strings, *dict.fromkeys(told.values()))
    first = {text: i for i, text in reversed(list(enumerate(strings)))}
    new = np.arange(len(program.strings), dtype=np.int32)
    for number, text in told.items():
        new[number] = first[text]
    return compact_tables(program.with_rows(cause=new[program.cause], strings=strings))


# Workloads whose sizes do not follow from rows: what cannot be grown, and what can be done instead.


def refuse_source(source: ShareInput) -> Workload:
    """The workload of a source. Raises FlintError FL926 for profiles, and traces without a workload."""
    if source.kind is ShareInputKind.PROFILE:
        raise FlintError(
            "FL926",
            f"{source.path} is a profile: times of one size say nothing about another",
            help="capture the program: flint capture MODEL --mesh 4x2 -o DIR",
        )
    if source.workload is None:
        raise FlintError(
            "FL926",
            f"{source.path} has traces, but not the workload that they were written from",
            help="traces do not contain sizes: give a directory that flint capture wrote",
        )
    return source.workload


def refuse_workload(workload: Workload) -> None:
    """Raise FlintError FL926 for programs that were measured, compiled, recorded, or are of several rank classes."""
    told = _why_not(workload)
    if told:
        why, instead = told
        raise FlintError("FL926", f"the workload cannot be grown: {why}", help=instead)


def _why_not(workload: Workload) -> tuple[str, str] | None:
    metadata = workload.metadata
    again = "capture it again with the desired sizes"
    if workload.measured_by is not None:
        return "it was measured, and times of one size say nothing about another", again
    if workload.compiled_by is not None:
        return "a compiler chose its kernels for these sizes", "capture it without --compiler"
    if metadata.get("profile") not in (None, "none"):
        return (
            "its rows are kernels",
            "capture it without --profile, and rewrite the grown one: flint opt",
        )
    if metadata.get("pipeline") or metadata.get("pools"):
        what = "a pipeline" if metadata.get("pipeline") else "pools"
        return (
            f"it has {what} of {len(workload.programs)} programs, whose stages are cut for these sizes",
            "grow the program without stages, or capture it again",
        )
    if len(workload.programs) != 1 or len(workload.classes) != 1:
        return f"it has {len(workload.classes)} rank classes, each with its own sizes", again
    flags = workload.programs[0].flags
    if ((flags & Flag.LAUNCHED) != 0).any():
        return (
            "it was recorded: its operations are those of a framework at these sizes",
            "capture an annotated program, or record it again with the desired sizes",
        )
    return None


# What a step does before and after it was grown.


def changes_of(before: Workload, after: Workload) -> tuple[Change, ...]:
    """Totals of one device in one step: work, memory and communication, those of collectives by kind and axes."""
    one, other = _values(before), _values(after)
    names = [*one, *(name for name in other if name not in one)]
    return tuple(Change(name, one.get(name, 0), other.get(name, 0)) for name in names)


def _values(workload: Workload) -> dict[str, float]:
    found = totals(workload.programs[0])
    values: dict[str, float] = {
        "devices": workload.mesh.size,
        "rows": len(workload.programs[0]),
        "FLOPs": found.flops,
        "parameter bytes": found.parameter_bytes,
        "peak memory bytes": max(use.peak_bytes for use in step_memory(workload)),
        "communication bytes": found.comm_bytes,
    }
    for part in found.communication:
        values[f"{part.kind} over {part.axes}, bytes"] = part.comm_bytes
    return values


# A grown workload held against what is known of its arguments: whole dimensions are as planned.


def require_shardings(known: Known, planned: Plan, found: Workload) -> None:
    """Raise FlintError FL922 for arguments whose whole dimensions are not what variables make of them.

    A dimension over which axes are gathered can be read in several ways: an axis may have been taken for a factor
    of another one. Then the new mesh changes what it should not.
    """
    old, new = known.workload.mesh, found.mesh
    _require_simple(known, new)
    p, after = known.structure.program, found.programs[0]
    for row in known.structure.parameters:
        sharded = known.structure.sharded_dims(row)
        shapes = p.shapes[int(p.shape[row])], after.shapes[int(after.shape[row])]
        for (axes, dim), before, size in zip(sharded, *shapes, strict=False):
            if before == 1 or len(dim.terms) > 1:
                continue
            wanted = before * _devices(axes, old) * _ratio(dim, planned)
            if size * _devices(axes, new) != wanted:
                raise _unequal(known.name(row), before)


def _require_simple(known: Known, new: Mesh) -> None:
    """No dimension has an axis that changes twice as a factor; without shardings no weight has a constant."""
    old = known.workload.mesh
    changed = {n for n, size in new.shape.items() if old.shape[n] != size}
    if changed and not known.has_shardings:
        for row in known.structure.weights:
            for dim, size in zip(known.structure.dims(row), known.shape(row), strict=True):
                if size > 1 and not dim.variables:
                    raise _unclear(known.name(row), size)
    for monomial in known.structure.monomials:
        axes = [f.name for f in monomial if isinstance(f, AxisRef)]
        if twice := [a for a in axes if axes.count(a) > 1 and a in changed]:
            raise FlintError(
                "FL922",
                f"axis '{twice[0]}' cannot change: it is unclear how dimensions of the program are split over it",
                help="capture it on another mesh, whose axes are not as long as a number of heads",
            )


def _devices(axes: tuple[str, ...], mesh: Mesh) -> int:
    return math.prod(mesh.shape[a] for a in axes)


def _ratio(dim: Expression, planned: Plan) -> Fraction:
    found = Fraction(1)
    for monomial, _ in dim.terms:
        for factor in monomial:
            if isinstance(factor, int):
                found *= planned.ratios[factor]
    return found


def _unclear(name: str, size: int) -> FlintError:
    return FlintError(
        "FL922",
        f"the mesh cannot change: a dimension of {size:,} of {name} belongs to no variable, and "
        "without shardings it is unknown whether an axis splits it",
        help="grow the workload before flint anonymize, which drops shardings",
    )


def _unequal(name: str, size: int) -> FlintError:
    return FlintError(
        "FL922",
        f"{name} would change: a dimension of {size:,} is read in two ways",
        help="capture the program on another mesh, whose axes are not as long as another dimension",
    )


#: What `flint grow` takes for granted of XLA's programs.
_SAME_CHOICES = "XLA's partitioner would choose the same collectives: it chooses by sizes, and gathers some large values twice"


@dataclass(frozen=True)
class Grown:
    """A workload that was grown, what it was made of, and what was taken for granted.

    `variables` are those of the original, with their new sizes. `source` is what was read, None for a workload of
    this process.
    """

    workload: Workload
    original: Workload
    variables: tuple[SizeEntry, ...]
    assumed: tuple[str, ...]
    source: ShareInput | None = None

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Totals of one device in one step, before and after."""
        return changes_of(self.original, self.workload)

    def save(self, out: str | Path, *, force: bool = False) -> int:
        """Write a `.flint` file, or a directory of traces by the options of those that were read.

        Gives the number of files. Raises FlintError FL903 for a place in the input, FL501 to FL506 for
        one that cannot be written, FL508 for a file that Flint did not write, without `force`.
        """
        return save_shared(self.workload, out, self.source, force=force)


@takes_fields(GrowRequest, tuple(GrowRequest.options()))
def grow(source: Workload | str | Path, **sizes: Any) -> Grown:
    """A workload as it would be captured with other sizes, as far as its rows tell.

    `source` is a workload, a `.flint` file, or a directory that `flint capture` or `flint anonymize` wrote. Sizes
    are whole ones, over all devices, or factors ("2x"). `mesh` has the same axes. `values` sets variables by name
    (`{"d7": 4096}`): without any change the result lists them, `Grown.variables`. `split` says which axes split one
    (`{"d7": "data+model"}`). Each size changes alone: a model twice as wide has its width, ffn and heads doubled.

    Raises FlintError FL920 (a size), FL921 (an axis of one device), FL922 (a size that does not fit), FL923 (a role that
    the program has not), FL924 (a variable), FL925 (a mesh), FL926 (what cannot be grown).
    """
    refuse_unknown("grow", GrowRequest.options(), sizes)
    request = GrowRequest(**sizes)
    read = None if isinstance(source, Workload) else read_source(source)
    workload = source if isinstance(source, Workload) else refuse_source(read)  # type: ignore[arg-type]
    return grown(workload, request, read)


def grown(workload: Workload, wish: GrowRequest, source: ShareInput | None = None) -> Grown:
    """The same of a workload that was read."""
    refuse_workload(workload)
    known = known_of(workload, wish.axes)
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
        require_whole(known.sizes, found)
    entries = entries_of(known, planned.values, asked.mesh, unrolled)
    assumed = planned.assumed
    if wish.changes and workload.metadata.get("partitioner") == "xla":
        assumed = (*assumed, _SAME_CHOICES)
    return Grown(found, workload, entries, assumed, source)


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


def _asked(known: Known, wish: GrowRequest) -> tuple[AskedSizes, int | None]:
    """What is asked for in numbers; and the number of layers if they are rows of their own."""
    roles = {
        name: Amount.parse("--" + name.replace("_", "-"), size) for name, size in wish.roles.items()
    }
    numbers = require_variables(wish.variables, known)
    values = {
        numbers[name]: Amount.parse(f"--set {name}", size) for name, size in wish.variables.items()
    }
    unrolled = None
    if "layers" in roles and "layers" not in known.roles:
        now = unrolled_layers(known.structure.program)
        if now > 1:
            unrolled = roles.pop("layers").of(now, "layers")
    mesh = _mesh(known.workload.mesh, wish.mesh)
    return AskedSizes(mesh, roles, values, wish.keep_global_batch), unrolled


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


def _metadata(before: Workload, after: Workload, wish: GrowRequest) -> dict[str, Any]:
    """Facts that are still true, and what changed. The source is not that of the grown program."""
    untrue = ("source", "entry", "settings", "model_share")
    found = {k: v for k, v in after.metadata.items() if k not in untrue}
    changed: dict[str, Any] = {
        name: str(size) for name, size in {**wish.roles, **wish.variables}.items()
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


def require_whole(before: Sizes, after: Workload) -> None:
    """Raise FlintError FL922 for a result with rows that do not fit what they read, of which its original has none."""
    try:
        after.verify()
    except AssertionError as error:
        raise _inconsistent(str(error)) from error
    if broken := Sizes.of(after).unexplained_ops - before.unexplained_ops:
        names = ", ".join(sorted(op.name.lower() for op in broken))
        raise _inconsistent(f"rows of {names} do not fit what they read")


def _inconsistent(why: str) -> FlintError:
    return FlintError(
        "FL922",
        f"these sizes do not fit together: {why}",
        help="change fewer of them at once to see which one it is",
    )
