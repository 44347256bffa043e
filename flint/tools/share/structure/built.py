"""A wiring as a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import in_order_of_use
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMN_TYPES, COLUMNS, Collective, Flag, Kind, Program, Region
from flint.tools.share.structure.wiring import Wiring

_VIEW = "stablehlo.reshape"
#: Flags of the first and the last dependency of a product: they change places with them.
_PAIRS = ((Flag.TURNED_FIRST, Flag.TURNED_LAST), (Flag.SEEN_FIRST, Flag.SEEN_LAST))


def built(wiring: Wiring) -> Program:
    """The program whose rows run in the order, and read what the wiring says."""
    p = wiring.facts.program
    rows = [r for r in wiring.order if not wiring.is_yield(r)]
    place = {row: at for at, row in enumerate(rows)}
    source = np.array([_source(wiring, r) for r in rows], dtype=np.int64)
    columns = {
        name: getattr(p, name)[source].copy()
        for name in COLUMNS
        if name not in ("dep_start", "deps")
    }
    tables = _views(wiring, columns, rows)
    links = [sorted(place[v] for v in wiring.reads[r]) for r in rows]
    columns["deps"] = np.array([d for deps in links for d in deps], dtype=COLUMN_TYPES["deps"])
    columns["dep_start"] = np.zeros(len(rows) + 1, dtype=COLUMN_TYPES["dep_start"])
    np.cumsum([len(deps) for deps in links], out=columns["dep_start"][1:])
    alias = [wiring.alias_of(r) for r in rows]
    columns["alias"] = np.array([place.get(a, -1) for a in alias], dtype=COLUMN_TYPES["alias"])
    _turn(columns, wiring, rows, place)
    regions = _regions(wiring, place)
    found = replace(p, regions=regions, **columns, **tables)
    # Streams keep their order: where two are alike it says which one goes first.
    return replace(in_order_of_use(found), stream=found.stream, streams=found.streams)


def _source(wiring: Wiring, row: int) -> int:
    """The row whose columns it has: its own, or those of the row for which a view is made."""
    return wiring.views[row - wiring.first_view] if wiring.is_view(row) else row


def _views(wiring: Wiring, columns: dict[str, NDArray[Any]], rows: Sequence[int]) -> dict[str, Any]:
    """Make the new rows views; gives tables that have changed."""
    p = wiring.facts.program
    new = np.flatnonzero([wiring.is_view(r) for r in rows])
    sorts = [wiring.types[wiring.type[rows[at]]] for at in new.tolist()]
    shapes = {shape: number for number, shape in enumerate(p.shapes)}
    columns["dtype"][new] = [s.dtype for s in sorts]
    columns["shape"][new] = [shapes.setdefault(s.shape, len(shapes)) for s in sorts]
    columns["result_bytes"][new] = [s.num_bytes for s in sorts]
    for name, value in _NOTHING.items():
        columns[name][new] = value
    return {"shapes": tuple(shapes), **_opcodes(wiring, columns, rows, new)}


def _opcodes(
    wiring: Wiring, columns: dict[str, NDArray[Any]], rows: Sequence[int], new: NDArray[np.int64]
) -> dict[str, Any]:
    """Opcodes of views and of rows that do another operation."""
    opcodes = {name: number for number, name in enumerate(wiring.facts.program.opcodes)}
    columns["opcode"][new] = opcodes.setdefault(_VIEW, len(opcodes))
    for at, row in enumerate(rows):
        other = wiring.operations.get(row)
        if other is not None:
            columns["opcode"][at] = opcodes.setdefault(other.opcode, len(opcodes))
            columns["op"][at] = other.op
    return {"opcodes": tuple(opcodes)}


_NOTHING: dict[str, int] = {
    **dict.fromkeys(("operand_bytes", "flops", "dims", "product", "mask", "comm_bytes"), 0),
    **dict.fromkeys(
        ("name", "location", "cause", "compiled", "cycles", "measured_ns", "launcher"), 0
    ),
    **dict.fromkeys(("group", "route", "channel"), -1),
    "op": int(OpClass.RESHAPE),
    "kind": int(Kind.VALUE),
    "collective": int(Collective.NONE),
    "flags": int(Flag.VIEW),
}


def _turn(
    columns: dict[str, NDArray[Any]], wiring: Wiring, rows: list[int], place: dict[int, int]
) -> None:
    """Products whose operands have changed their order: flags of the first are those of the last."""
    p = wiring.facts.program
    pairs = sum(int(flag) for pair in _PAIRS for flag in pair)
    for at, row in enumerate(rows):
        if wiring.is_view(row) or not int(p.flags[row]) & pairs:
            continue
        reads = [place[v] for v in wiring.reads[row]]
        if len(reads) == 2 and reads[0] > reads[1]:
            columns["flags"][at] = _turned(int(columns["flags"][at]))


def _turned(flags: int) -> int:
    found = flags
    for one, other in _PAIRS:
        found &= ~int(one | other)
        found |= int(other) if flags & one else 0
        found |= int(one) if flags & other else 0
    return found


def _regions(wiring: Wiring, place: dict[int, int]) -> tuple[Region, ...]:
    p = wiring.facts.program
    goes_on = {
        (region, carry): wiring.reads[wiring.first_yield + n][0]
        for n, (region, carry) in enumerate(wiring.yields)
    }
    start = [len(place)] * len(p.regions)
    stop = [0] * len(p.regions)
    for row, at in place.items():
        for region in wiring.facts.around[wiring.region[row]]:
            if region >= 0:
                start[region], stop[region] = min(start[region], at), max(stop[region], at + 1)
    return tuple(
        replace(
            r,
            start=start[n],
            stop=stop[n],
            carries=tuple((place[c], place[goes_on.get((n, c), c)]) for c, _ in r.carries),
        )
        for n, r in enumerate(p.regions)
    )
