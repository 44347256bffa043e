"""How tokens are spread over experts: what `--routing` asks for, and what it does to a program.

A captured program has as many rows for each expert as for any other. Here some experts get more: by
a power law, or as a file says. Two things follow, of the rank with most rows, for which the others
wait: its grouped products (`flint.ir.product_types.grouped`) have more rows, unevenly spread, and the
all-to-alls that bring rows to it and take them away move more bytes. Kernels between them, and what
is padded to a capacity, stay as captured.

Which ranks share the experts is told by the all-to-alls that a grouped product reads from or is read
by, with nothing but rearrangements and element-wise kernels between.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flint.backends.cost.chips.kernels import Kernels
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, parse_json, read_bounded
from flint.io.records import NonNegative, record_of
from flint.ir.arrays import Float64s
from flint.ir.op_class import OpClass
from flint.ir.product_types import groups_of
from flint.ir.program import Collective, Int64s, Program

BALANCED = "balanced"
_POWER_LAW = "power-law:"
#: Draws of a power law, and layers and experts of a file.
DRAWS = 16
MOST_LOADS = 1_000_000
#: The largest load of a power law, over all rows: 0.8 of the tokens of a router that chooses 8.
LARGEST = 0.1
#: The largest exponent that is asked for.
MOST_POWER = 10.0
_HELP = (
    "--routing takes balanced, power-law:1.2, or a CSV or JSON file of loads: one line per layer"
)


@dataclass(frozen=True, eq=False)
class Routing:
    """Loads of experts: by a power law of exponent `power`, or `loads` (layers, experts)."""

    name: str
    power: float = 0.0
    loads: Float64s | None = None

    def of_rank(self, groups: int, ranks: int, rows: float) -> Float64s:
        """Loads (layers, groups) of the most loaded of `ranks`, over those of a balanced expert.

        `rows` are those of all experts. Raises FlintError FL726 if a file has loads of another number
        of experts.
        """
        drawn = self._drawn(groups * ranks, rows) if self.loads is None else self.loads
        if drawn.shape[1] % groups or (ranks > 1 and drawn.shape[1] != groups * ranks):
            there = f"{groups * ranks} experts ({groups} on each of {ranks} ranks)"
            raise FlintError(
                "FL726",
                f"routing {self.name} has loads of {drawn.shape[1]} experts, but the program has {there}",
                help=_HELP,
            )
        share = drawn / drawn.mean(axis=1, keepdims=True)
        of_ranks = share.reshape(len(share), -1, groups)
        most = of_ranks.sum(axis=2).argmax(axis=1)
        found: Float64s = of_ranks[np.arange(len(share)), most]
        return found

    def _drawn(self, experts: int, rows: float) -> Float64s:
        """From 1 row to a tenth of all, as often as x to the minus `power`."""
        uniform = np.random.default_rng(0).random((DRAWS, experts))
        most = max(LARGEST * rows, 2.0)
        if self.power == 1:
            return np.asarray(most**uniform, np.float64)
        end = most ** (1 - self.power)
        found: Float64s = (1 + (end - 1) * uniform) ** (1 / (1 - self.power))
        return found


def find_routing(asked: str | Path | Routing | None) -> Routing | None:
    """What was asked for; None for balanced. Raises FlintError FL726 for what is none."""
    if asked is None or isinstance(asked, Routing):
        return asked
    text = str(asked)
    if text == BALANCED:
        return None
    if text.startswith(_POWER_LAW):
        return Routing(text, power=_power(text))
    path = Path(text)
    if not path.suffix and "/" not in text:
        raise FlintError("FL726", f"there is no routing '{text}'", help=_HELP)
    return Routing(path.name, loads=_loads(path))


def _power(text: str) -> float:
    try:
        power = float(text.removeprefix(_POWER_LAW))
    except ValueError:
        power = math.nan
    if not 0 < power <= MOST_POWER:
        raise FlintError(
            "FL726",
            f"'{text}' is not a power law: its exponent is above 0 and at most 10",
            help=_HELP,
        )
    return power


def _loads(path: Path) -> Float64s:
    """Tokens of each expert, a row for each layer. Raises FlintError FL726."""
    data = read_bounded(path, FileKind.ROUTING, "FL726", _HELP)
    try:
        rows = list(_json_rows(data) if path.suffix == ".json" else _csv_rows(data))
    except Malformed as error:
        raise _bad(path, str(error)) from error
    rows = [row for row in rows if row]
    if not rows or len(set(map(len, rows))) > 1:
        raise _bad(path, "its lines have different numbers of experts" if rows else "it is empty")
    if len(rows) * len(rows[0]) > MOST_LOADS:
        raise _bad(path, f"it has more than {MOST_LOADS:,} loads")
    found = np.array(rows, np.float64)
    if not np.isfinite(found).all() or (found < 0).any() or (found > 1e15).any():
        raise _bad(path, "a load is below 0, or not a finite number below 1e15")
    if (found.sum(axis=1) == 0).any():
        raise _bad(path, "a layer has no tokens at all")
    return found


def _json_rows(data: bytes) -> Iterator[list[float]]:
    document = parse_json(data)
    if not isinstance(document, list):
        raise Malformed("it is not a list")
    for row in document if document and isinstance(document[0], list) else [document]:
        yield record_of(list[NonNegative], row)


def _csv_rows(data: bytes) -> Iterator[list[float]]:
    try:
        for row in csv.reader(io.StringIO(data.decode("utf-8"))):
            yield [float(cell) for cell in row if cell.strip()]
    except (ValueError, csv.Error) as error:
        raise Malformed("it contains something that is not a number") from error


def _bad(path: Path, said: str) -> FlintError:
    return FlintError("FL726", f"{path} has no loads of experts: {said}", help=_HELP)


def refuse_routing(routing: Routing | None) -> None:
    """Raise FlintError FL832 for a routing of what was measured, which had one of its own."""
    if routing is not None:
        raise FlintError(
            "FL832",
            f"routing '{routing.name}' does not apply to a workload made of profiles, whose "
            "experts have their recorded loads",
            help="omit --routing",
        )


@dataclass(frozen=True, eq=False)
class Spread:
    """What a routing does to a program.

    `loads` are, by row of a grouped product, loads of this rank's groups over a balanced one's
    (layers, groups); `payload` are, by row of an all-to-all, how many times its bytes move.
    """

    loads: Mapping[int, Float64s]
    payload: Mapping[int, float]

    def of_kernels(self, kernels: Kernels, rows: Int64s) -> Kernels:
        """Kernels with the most loaded rank's rows, those of grouped products unevenly spread."""
        dims, read, written = (
            c.copy() for c in (kernels.dims, kernels.read_bytes, kernels.written_bytes)
        )
        flops = kernels.flops.copy()
        spread: dict[int, Float64s] = {}
        for at in np.flatnonzero(np.isin(rows, list(self.loads))).tolist():
            loads = self.loads[int(rows[at])]
            grouped = groups_of(kernels.dtypes[kernels.dtype[at]])
            if grouped is None:
                continue
            times = float(loads.sum(axis=1).mean()) / loads.shape[1]
            ragged = 3 if grouped.sums else 1
            batch, _, n, k = map(int, dims[at])
            in_rows = batch * int(dims[at, 1]) * k
            share = 1.0 if grouped.sums else in_rows / max(in_rows + grouped.number * n * k, 1)
            dims[at, ragged] = math.ceil(int(dims[at, ragged]) * times)
            flops[at] = int(flops[at] * times)
            read[at] = int(read[at] * (1 + (times - 1) * share))
            written[at] = int(written[at] * (1.0 if grouped.sums else times))
            spread[grouped.number] = loads / (times * loads.shape[1])
        changed = replace(kernels, dims=dims, flops=flops, read_bytes=read, written_bytes=written)
        return replace(changed, spread=spread)

    def of_bytes(self, program: Program) -> Program:
        """The program whose all-to-alls move what the most loaded rank gets."""
        moved = program.comm_bytes.copy()
        for row, times in self.payload.items():
            moved[row] = round(int(moved[row]) * times)
        return replace(program, comm_bytes=moved)


def spread_of(program: Program, routing: Routing) -> Spread:
    """What a routing does to the rows of a program. Raises FlintError FL726."""
    names = [groups_of(name) for name in program.products]
    grouped = [row for row in range(len(program)) if names[int(program.product[row])]]
    loads: dict[int, Float64s] = {}
    payload: dict[int, float] = {}
    readers = _readers(program) if grouped else {}
    for row in grouped:
        known = names[int(program.product[row])]
        assert known is not None, "only rows of grouped products"
        exchanges = [*_exchanges(program, row, None), *_exchanges(program, row, readers)]
        ranks = max((_size(program, at) for at in exchanges), default=1)
        batch, m, _, k = map(int, program.dims[row])
        rows = batch * (k if known.sums else m) * ranks
        loads[row] = routing.of_rank(known.number, ranks, rows)
        times = float(loads[row].sum(axis=1).mean()) / known.number
        payload |= {at: max(times, payload.get(at, 1.0)) for at in exchanges}
    return Spread(loads, payload)


def _size(program: Program, row: int) -> int:
    return program.groups[int(program.group[row])].size(program.mesh)


def _readers(program: Program) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in range(len(program)):
        for read in program.deps[program.dep_start[row] : program.dep_start[row + 1]].tolist():
            found.setdefault(read, []).append(row)
    return found


def _exchanges(program: Program, row: int, readers: Mapping[int, list[int]] | None) -> list[int]:
    """All-to-alls before a row, or with `readers` behind it, with no product or attention between."""
    found, seen, left = [], {row}, [row]
    while left:
        at = left.pop()
        near = (
            program.deps[program.dep_start[at] : program.dep_start[at + 1]].tolist()
            if readers is None
            else readers.get(at, [])
        )
        for other in near:
            if other in seen:
                continue
            seen.add(other)
            if program.collective[other] == Collective.ALL_TO_ALL and program.group[other] >= 0:
                found.append(other)
            elif _rearranges(program, other):
                left.append(other)
    return found


def _rearranges(program: Program, row: int) -> bool:
    """Whether a row may lie between an exchange and a product of experts.

    The second product of experts lies behind the first: grouped products are passed.
    """
    multiplies = program.products[int(program.product[row])]
    attends = program.op[row] in (OpClass.ATTENTION, OpClass.FUSED_ATTENTION)
    return not attends and (not multiplies or groups_of(multiplies) is not None)
