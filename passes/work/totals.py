"""Totals of a Program over one step: operations, work, memory of parameters, communication."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flint.ir.columns import is_any
from flint.ir.dims import ProductDims
from flint.ir.mesh import AxisRef, Route
from flint.ir.op_class import PRODUCT, SEVERAL_PRODUCTS, OpClass
from flint.ir.program import Collective, Int64s, Kind, Program
from flint.ir.verify import exact_sum


@dataclass(frozen=True, slots=True)
class CommunicationTotal:
    """Executions and input bytes of one kind of communication over one set of axes.

    Of messages along listed pairs, those of the device that has most bytes of them.
    """

    kind: str  #: `all_reduce`, ..., `permute`, `send`, `recv`
    axes: str  #: text of the `Group` or `Route`
    count: int
    comm_bytes: int


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What one device does in one step; loops count as often as they run.

    `matmul_flops` are those of products of matrices and convolutions, fused or not, without what a
    kernel fuses to them: at most 2 x batch x m x n x k per execution. An attention kernel counts
    whole: its dims hold the first of its products only.
    """

    op_count: int
    executed_op_count: int
    flops: int
    matmul_flops: int
    parameter_bytes: int
    communication: tuple[CommunicationTotal, ...]

    @property
    def comm_bytes(self) -> int:
        """Input bytes of all communication; a message counts where it is sent."""
        return sum(c.comm_bytes for c in self.communication if c.kind != "recv")


def totals(program: Program) -> StepTotals:
    """Add up a program. `op_count` counts rows that work (COMPUTE and communication) on the device."""
    works = (program.kind >= Kind.COMPUTE) & ~is_any(program, OpClass.HOST)
    return StepTotals(
        op_count=int(works.sum()),
        executed_op_count=total(program, works.astype(np.int64)),
        flops=total(program, program.flops),
        matmul_flops=total(program, matmul_flops(program)),
        parameter_bytes=exact_sum(program.result_bytes[program.kind == Kind.PARAMETER]),
        communication=_communication(program),
    )


def total(program: Program, per_execution: Int64s) -> int:
    """Sum over rows of a number that is not negative, times executions, exact however large."""
    order = np.argsort(program.region, kind="stable")
    regions, start = np.unique(program.region[order], return_index=True)
    parts = np.split(per_execution[order], start[1:])
    trips = (*program.region_trips, 1)
    return sum(
        trips[int(region)] * exact_sum(part)
        for region, part in zip(regions, parts, strict=False)  # no rows: one empty part
    )


def matmul_flops(program: Program) -> Int64s:
    """For each row, flops of one execution that are products of matrices, see `StepTotals`."""
    one_product = (program.dims > 0).all(axis=1)
    products = is_any(program, PRODUCT) | (ProductDims.of(program.dims).n > 1)
    products |= is_any(program, OpClass.COMPILED) & (program.product > 0)
    rows = np.flatnonzero(products & one_product)
    flops = np.zeros(len(program), dtype=np.int64)
    flops[rows] = one_product_flops(program, rows)
    whole = is_any(program, SEVERAL_PRODUCTS | {OpClass.CALL, OpClass.DECLARED})
    return np.where(whole & one_product, program.flops, flops)


def one_product_flops(program: Program, rows: Int64s) -> Int64s:
    """The flops of the product of which `dims` are, at most those of the row."""
    exact = 2.0 * program.dims[rows].astype(np.float64).prod(axis=1)
    bound = 2 * program.dims[rows].prod(axis=1)
    bound = np.where(exact < 2**62, bound, program.flops[rows])  # the product would overflow
    return np.minimum(program.flops[rows], bound)


def _communication(program: Program) -> tuple[CommunicationTotal, ...]:
    trips = (*program.region_trips, 1)
    found: dict[tuple[str, str], list[int]] = {}
    listed: dict[tuple[str, tuple[AxisRef, ...]], _Listed] = {}
    for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
        times, comm_bytes = trips[int(program.region[row])], int(program.comm_bytes[row])
        kind, route = Kind(int(program.kind[row])), int(program.route[row])
        if kind is not Kind.COLLECTIVE and program.routes[route].pairs:
            along = program.routes[route]
            of_pairs = listed.setdefault((kind.name.lower(), along.axes), _Listed())
            of_pairs.add(along, times, times * comm_bytes, sends=kind is Kind.SEND)
            continue
        entry = found.setdefault(_kind_and_axes(program, row), [0, 0])
        entry[0] += times
        entry[1] += times * comm_bytes
    for (name, axes), of_pairs in listed.items():
        found[name, str(Route(axes, pairs=tuple(of_pairs.pairs)))] = of_pairs.of_busiest()
    return tuple(CommunicationTotal(*key, *found[key]) for key in sorted(found))


@dataclass
class _Listed:
    """Messages along routes of listed pairs: of a row, only the devices in its pairs have one."""

    pairs: dict[tuple[int, int], None] = field(default_factory=dict)
    at: dict[int, list[int]] = field(default_factory=dict)

    def add(self, route: Route, count: int, comm_bytes: int, *, sends: bool) -> None:
        for source, target in route.pairs:
            self.pairs[source, target] = None
            entry = self.at.setdefault(source if sends else target, [0, 0])
            entry[0] += count
            entry[1] += comm_bytes

    def of_busiest(self) -> list[int]:
        """Count and bytes of the position that has most bytes."""
        return max(self.at.values(), key=lambda entry: (entry[1], entry[0]))


def _kind_and_axes(program: Program, row: int) -> tuple[str, str]:
    kind = Kind(int(program.kind[row]))
    collective = Collective(int(program.collective[row]))
    name = collective.name if kind is Kind.COLLECTIVE else kind.name
    group, route = int(program.group[row]), int(program.route[row])
    return name.lower(), str(program.groups[group] if group >= 0 else program.routes[route])
