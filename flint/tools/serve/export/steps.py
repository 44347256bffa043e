"""Steps of a run: which kinds there are, and the captured pass with the sizes of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Float64s
from flint.ir.program import Int64s, Program
from flint.tools.serve.engine.record import KINDS, PassColumns
from flint.tools.serve.requests.table import Ints
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.surface.lines import COLUMNS, PassLines, PassPart
from flint.tools.serve.surface.surface import Surface, alike

_FLOPS, _ELEMENTS = COLUMNS.index("flops"), COLUMNS.index("elements")
#: Columns of `COLUMNS` that add up: flops, and bytes that are read and written.
_WORK = slice(_FLOPS, _FLOPS + 3)


@dataclass(frozen=True, eq=False)
class StepKind:
    """Steps that are alike: what they compute, and as many tokens up to a power of two.

    `chosen` (an engine and a pass of it) is the one whose time is nearest to their mean.
    """

    name: str
    steps: int
    chosen: tuple[int, int]


def kinds_of(engines: Sequence[PassColumns]) -> tuple[list[StepKind], list[Ints]]:
    """The kinds of the passes of some engines, and of each engine the kind of each pass."""
    word = np.concatenate([c.kind for c in engines])
    sizes = np.concatenate([np.ceil(np.log2(c.decodes + c.new)) for c in engines])
    took = np.concatenate([c.end_ns - c.start_ns for c in engines])
    ends = np.cumsum([0, *(len(c.kind) for c in engines)])
    keys, kind = np.unique(np.column_stack([word, sizes]), axis=0, return_inverse=True)
    kind = kind.ravel()
    found = []
    for number, (what, size) in enumerate(keys.astype(int).tolist()):
        mine = np.flatnonzero(kind == number)
        at = int(mine[np.abs(took[mine] - took[mine].mean()).argmin()])
        engine = int(np.searchsorted(ends, at, side="right")) - 1
        name = f"{KINDS[what].value}-{1 << size}"
        found.append(StepKind(name, len(mine), (engine, at - int(ends[engine]))))
    return found, np.split(kind, ends[1:-1])


def sized_pass(
    surface: Surface, decodes: int, decode_context: int, chunks: Sequence[PromptChunk]
) -> tuple[Program, Float64s]:
    """The captured pass with the sizes that `Surface.step_ns` adds up, and nanoseconds of each row.

    Arguments are those of that. Where prompts and sequences that decode share a pass, each kernel of
    attention is one for both. Values and arguments keep the shapes of the capture.
    """
    lines = surface.prefill if chunks else surface.decode
    beside: tuple[float, float, float] = (decodes, 1, decode_context / max(decodes, 1))
    tokens, last, attention = (decodes, 1, 0), (decodes, 1, 0), beside
    if chunks:
        tokens = (1, decodes + sum(chunk.new for chunk in chunks), 0)
        last = (decodes + sum(chunk.logits for chunk in chunks), 1, 0)
        attention = alike(chunks)
    found = _Sized(lines)
    for part, size in zip(PassPart, (tokens, last, attention), strict=True):
        found.fill(part, np.array([size], dtype=np.float64))
    if chunks and decodes:
        found.attend_beside(surface.decode, np.array([beside], dtype=np.float64))
    return found.program(max(surface.late[bool(chunks)], 1.0))


class _Sized:
    """Of each line of kernels `COLUMNS` and a time, of each line of calls bytes and a time."""

    def __init__(self, lines: PassLines) -> None:
        self.lines = lines
        self.columns: Int64s = np.zeros((len(lines.base), len(COLUMNS)), dtype=np.int64)
        self.payload: Int64s = np.zeros(len(lines.calls), dtype=np.int64)
        self.kernel_ns: Float64s = np.zeros(len(lines.base))
        self.call_ns: Float64s = np.zeros(len(lines.calls))

    def fill(self, part: PassPart, at: Float64s) -> None:
        """What a part has at sizes (1, 3)."""
        lines = self.lines
        mine, calls = (np.flatnonzero(of == part) for of in (lines.parts, lines.call_parts))
        self.columns[mine] = lines.columns(mine, at)[0]
        self.kernel_ns[mine] = lines.kernels_ns(mine, at)[0]
        self.payload[calls] = lines.payload_bytes(calls, at)[0]
        self.call_ns[calls] = lines.calls_ns(calls, at)[0]

    def attend_beside(self, others: PassLines, at: Float64s) -> None:
        """Attention of sequences that decode, in proportion into that of prompts."""
        mine, more = (np.flatnonzero(of.parts == PassPart.ATTENTION) for of in (self.lines, others))
        counts, columns = self.lines.counts[mine], self.columns[mine]
        had = counts @ columns[:, _WORK]
        added = others.counts[more] @ others.columns(more, at)[0][:, _WORK]
        columns[:, _WORK] = np.rint(columns[:, _WORK] * (1 + added / np.maximum(had, 1)))
        self.columns[mine] = columns
        attention_ns = others.ns(PassPart.ATTENTION, at)[0]
        self.kernel_ns[mine] *= 1 + attention_ns / (counts @ self.kernel_ns[mine])

    def program(self, late: float) -> tuple[Program, Float64s]:
        """The program of the lines with these sizes, and the time of each row; kernels take `late` times as long."""
        lines, program = self.lines, self.lines.program
        kernels, calls = np.split(lines.rows, [int((lines.line < len(lines.base)).sum())])
        of_kernel, of_call = (
            lines.line[: len(kernels)],
            lines.line[len(kernels) :] - len(lines.base),
        )
        ns = np.zeros(len(program))
        ns[kernels], ns[calls] = self.kernel_ns[of_kernel] * late, self.call_ns[of_call]
        new = {name: getattr(program, name).copy() for name in (*_ROWS, "comm_bytes", "shape")}
        columns = self.columns[of_kernel]
        values = columns[:, :4], *columns[:, _WORK].T
        for name, value in zip(_ROWS, values, strict=True):
            new[name][kernels] = value
        counts, where = np.unique(columns[:, _ELEMENTS], return_inverse=True)
        new["shape"][kernels] = len(program.shapes) + where.ravel()
        grown = self.payload[of_call] / np.maximum(program.comm_bytes[calls], 1)
        for name in ("operand_bytes", "result_bytes"):
            new[name][calls] = np.rint(new[name][calls] * grown)
        new["comm_bytes"][calls] = self.payload[of_call]
        shapes = (*program.shapes, *((count,) for count in counts.tolist()))
        return program.with_rows(**new, shapes=shapes), ns


#: What of a row is of `COLUMNS`: its dims, then `_WORK`.
_ROWS = ("dims", "flops", "operand_bytes", "result_bytes")
