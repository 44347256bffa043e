"""The summary of a workload: what one device of each rank class computes, holds and sends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.io.documents import IfAny, Unpublished, as_object
from flint.ir.made_by import CompiledBy
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.passes.work.totals import CommunicationTotal, totals
from flint.plugins import drawn
from flint.text import (
    format_bytes,
    format_count,
    format_flops,
    headings,
    plural,
    text_table,
    warning_lines,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


_SHOWN_ARGUMENTS = 3
COLLECTIVE_COLUMNS = headings("collective | over | >ranks | >count | >bytes")


@dataclass(frozen=True)
class CollectiveTotal:
    """Communication of one kind over the same axes, in one step of one device."""

    collective: str
    """Kind: all_reduce, all_gather, reduce_scatter, all_to_all, permute, broadcast, or message."""
    over: str  #: Mesh axes, joined by "+"; of messages, their route.
    group_size: int  #: Devices of a group; 0 for messages.
    count: int  #: How often a step runs it, with the trip counts of loops.
    comm_bytes: int  #: Bytes that one device puts in, of all `count` together.


@dataclass(frozen=True)
class ClassSummary:
    """One step of one device of a rank class: ranks that run the same program."""

    name: str  #: Name of the class; "all" where every rank runs the same.
    ranks: int  #: How many ranks it has.
    ops: int  #: Operations of the program that do work.
    executions: int  #: The same with the trip counts of loops.
    flops: int  #: Floating point operations of a step on one device; a multiply-add counts 2.
    matmul_flops: int  #: Those of matrix products and convolutions.
    parameter_bytes: int  #: Bytes of all that the step is given: weights, optimizer state, batch.
    argument_bytes: Mapping[str, int]  #: The same by argument of the step, in bytes.
    collectives: tuple[CollectiveTotal, ...]  #: Communication, most bytes first.
    unpriced: Mapping[str, int]
    """Executions of operations whose work is not known, by opcode: `flops` leaves them out."""
    unsized_communication: int = 0
    """Measured kernels that communicate, of which neither bytes nor group are known: `collectives`
    leaves them out."""


@dataclass(frozen=True)
class Summary:
    """What a captured program computes, holds and sends.

    `flint capture` prints it: text for files, a rich table for terminals, HTML, JSON.
    """

    name: str  #: Name of the program.
    source: str  #: File that it is from, without its directories; "" where there is none.
    mesh: Mapping[str, int]  #: Devices along each axis, in the order of the mesh.
    devices: int  #: Devices of the mesh.
    classes: tuple[ClassSummary, ...]  #: One entry for each rank class.
    compiled_by: IfAny[CompiledBy | None] = None
    """The whole compiler that made the programs, only where there is one."""
    warnings: Unpublished[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Exact numbers, JSON-able, without the warnings."""
        return as_object(self)

    def to_text(self) -> str:
        """Plain text of any width, without the warnings: `str` has them too."""
        blocks = [_facts_text(self.facts())]
        for c in self.classes:
            facts = _facts_text(self.class_facts(c))
            blocks.append(f"class {c.name}\n{facts}" if len(self.classes) > 1 else facts)
            if c.collectives:
                blocks.append(text_table(COLLECTIVE_COLUMNS, collective_cells(c)))
        return "\n\n".join(blocks)

    def to_rich(self) -> RenderableType:
        """The same as `to_text` for a terminal."""
        from rich.console import Group

        parts: list[RenderableType] = [_facts_rich(self.facts())]
        for c in self.classes:
            title = f"class {c.name}" if len(self.classes) > 1 else None
            parts.append(_facts_rich(self.class_facts(c), title))
            if c.collectives:
                parts.append(_collectives_rich(c))
        return Group(*parts)

    def _repr_html_(self) -> str:
        return drawn("Summary._repr_html_", self)

    def __str__(self) -> str:
        return "\n\n".join((self.to_text(), *warning_lines(self.warnings)))

    def facts(self) -> list[tuple[str, str]]:
        """Labels and values that hold for all classes, in human units."""
        mesh = " x ".join(f"{n}={s}" for n, s in self.mesh.items())
        title = f"{self.name} ({self.source})" if self.source else self.name
        found = [("program", title), ("mesh", mesh), ("devices", format_count(self.devices))]
        return found + ([] if self.compiled_by is None else _compiler_facts(self.compiled_by))

    def class_facts(self, c: ClassSummary) -> list[tuple[str, str]]:
        """Labels and values of one rank class, in human units."""
        matmuls = f"{format_flops(c.matmul_flops)} in matmuls"
        facts = [
            ("ops", f"{format_count(c.ops)} ({format_count(c.executions)} executed per step)"),
            ("FLOPs per device", f"{format_flops(c.flops)} ({matmuls})"),
        ]
        if c.argument_bytes:  # a profile does not say what a step was given
            facts.append(("parameter bytes per device", _parameter_text(c)))
        if len(self.classes) > 1:
            facts.insert(0, ("ranks", format_count(c.ranks)))
        if c.unpriced:
            listed = ", ".join(f"{name} x{count}" for name, count in c.unpriced.items())
            facts.append(("unpriced ops", f"{listed} (FLOPs are a lower bound)"))
        if c.unsized_communication:
            kernels = plural(c.unsized_communication, "kernel")
            facts.append(("communication", f"{kernels} of unknown bytes and group"))
        elif not c.collectives:
            facts.append(("communication", "none"))
        return facts


def _compiler_facts(by: CompiledBy) -> list[tuple[str, str]]:
    """Who compiled the programs, and what memory they need by its own analysis."""
    found = [("compiler", str(by))]
    if by.memory:
        held = by.memory.argument_bytes + by.memory.output_bytes - by.memory.alias_bytes
        parts = f"arguments and results {format_bytes(held)}, the rest {format_bytes(by.memory.temp_bytes)}"
        found.append(("memory per device", f"{format_bytes(by.memory.peak_bytes)} ({parts})"))
    return found


def summarize(workload: Workload, written: Workload | None = None) -> Summary:
    """Add up a workload. Programs are added up once each, however many ranks run them.

    `written` is the form of it that is in traces, after the rewrites of a profile: communication is
    that of the files, operations and flops are those of the workload.
    """
    sizes = np.bincount(workload.class_of_ranks(), minlength=len(workload.classes))
    communicates = (written or workload).programs
    classes = tuple(
        _summarize_class(workload.programs[c.program], communicates[c.program], c.name, int(ranks))
        for c, ranks in zip(workload.classes, sizes, strict=True)
    )
    return Summary(
        name=str(workload.metadata.get("name") or "program"),
        source=str(workload.metadata.get("source") or ""),
        mesh=workload.mesh.shape,
        devices=workload.mesh.size,
        classes=classes,
        compiled_by=workload.compiled_by,
        warnings=workload.warnings,
    )


def _summarize_class(
    program: Program, communicates: Program, name: str, ranks: int
) -> ClassSummary:
    total = totals(program)
    sent = total if communicates is program else totals(communicates)
    return ClassSummary(
        name=name,
        ranks=ranks,
        ops=total.op_count,
        executions=total.executed_op_count,
        flops=total.flops,
        matmul_flops=total.matmul_flops,
        parameter_bytes=total.parameter_bytes,
        argument_bytes=_argument_bytes(program),
        collectives=_collectives(communicates, sent.communication),
        unpriced=_unpriced(program),
        unsized_communication=int((program.op == OpClass.COMMUNICATION).sum()),
    )


def _argument_bytes(program: Program) -> dict[str, int]:
    """Bytes per device by argument of the step: `params['wq']` and `params['wo']` are `params`."""
    found: Counter[str] = Counter()
    for row in np.flatnonzero(program.kind == Kind.PARAMETER).tolist():
        name = program.strings[program.name[row]]
        found[re.split(r"[\[.]", name, maxsplit=1)[0]] += int(program.result_bytes[row])
    return dict(found)


def _parameter_text(c: ClassSummary) -> str:
    """The total, and its largest arguments where there are several."""
    whole = format_bytes(c.parameter_bytes)
    if len(c.argument_bytes) < 2:
        return whole
    largest = sorted(c.argument_bytes.items(), key=lambda item: -item[1])
    shown = [f"{name} {format_bytes(size)}" for name, size in largest[:_SHOWN_ARGUMENTS]]
    if len(largest) > _SHOWN_ARGUMENTS:
        shown.append(f"{len(largest) - _SHOWN_ARGUMENTS} more")
    return f"{whole} ({', '.join(shown)})"


def _unpriced(program: Program) -> dict[str, int]:
    """Executions per step of rows without known work, by opcode."""
    rows = np.flatnonzero((program.flags & Flag.UNPRICED) != 0)
    found: Counter[str] = Counter()
    for row in rows:
        found[program.opcodes[program.opcode[row]]] += int(program.trips[row])
    return dict(sorted(found.items()))


def _collectives(
    program: Program, communication: Iterable[CommunicationTotal]
) -> tuple[CollectiveTotal, ...]:
    """Totals with group sizes, largest first, then by name."""
    sizes = {str(g): g.size(program.mesh) for g in program.groups}
    found = [
        CollectiveTotal(c.kind, c.axes, sizes.get(c.axes, 0), c.count, c.comm_bytes)
        for c in communication
    ]
    return tuple(sorted(found, key=lambda t: (-t.comm_bytes, t.collective, t.over)))


def collective_cells(c: ClassSummary) -> list[tuple[str, ...]]:
    return [
        (
            t.collective,
            t.over,
            format_count(t.group_size) if t.group_size else "-",
            format_count(t.count),
            format_bytes(t.comm_bytes),
        )
        for t in c.collectives
    ]


def _facts_text(facts: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in facts)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in facts)


def _facts_rich(facts: list[tuple[str, str]], title: str | None = None) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, show_header=False, box=None, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in facts:
        table.add_row(label, Text(value))  # plain: a name may hold what rich takes for markup
    return table


def _collectives_rich(c: ClassSummary) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for column in COLLECTIVE_COLUMNS:
        table.add_column(column.title, justify="right" if column.right else "left")
    for cells in collective_cells(c):
        table.add_row(*map(Text, cells))
    return table
