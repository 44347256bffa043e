"""What is known before programs are composed: parts of every stage, orders, and memory held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flint.errors import FlintError, nearest
from flint.passes.columns import kept, with_value
from flint.passes.pipeline.messages import Neighbours
from flint.passes.pipeline.parts import Key, Part, Partial, PartitionedBody, Saved, StageParts
from flint.passes.pipeline.units import Unit, Work
from flint.program import Phase
from flint.staged import CapturedPipeline, Port, Role

#: What gradients can be accumulated in, by its own and by StableHLO's name: a program's name of it
#: and the bytes of one element.
GRADIENT_DTYPES: dict[str, tuple[str, int]] = {
    "f32": ("float32", 4),
    "float32": ("float32", 4),
    "bf16": ("bfloat16", 2),
    "bfloat16": ("bfloat16", 2),
    "f16": ("float16", 2),
    "float16": ("float16", 2),
    "f64": ("float64", 8),
    "float64": ("float64", 8),
}


@dataclass(frozen=True, eq=False)
class Plan:
    """A pipeline with its bodies split into parts, and the order of units of every position.

    `parts`, `norms` and `updates` go by body, as `captured.bodies` does.
    """

    captured: CapturedPipeline
    parts: tuple[StageParts, ...]
    norms: tuple[Part | None, ...]
    updates: tuple[Part | None, ...]
    orders: tuple[tuple[Unit, ...], ...]
    neighbours: Neighbours

    @property
    def ranks(self) -> int:
        """Number of positions along the pipeline's axis."""
        return self.neighbours.ranks

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return any(p.backward is not None for p in self.parts)

    @property
    def accumulates(self) -> bool:
        """Whether gradients are added to buffers of their own."""
        return self.captured.microbatches > 1 or bool(self.captured.gradient_dtype)


def once_a_step(body: PartitionedBody | None) -> Part | None:
    """A body of the optimizer as one part."""
    if body is None:
        return None
    phase = np.full(len(body.program), Phase.OPTIMIZER, dtype=np.uint8)
    program = body.program.with_rows(phase=phase)
    last = len(program) - 1
    assert program.opcodes[program.opcode[last]] == "func.return"
    keep = np.ones(len(program), dtype=np.bool_)
    keep[last] = False
    inputs: dict[Key, int] = dict(zip(body.arguments, body.argument_rows, strict=True))
    outputs: dict[Key, int] = dict(zip(body.results, body.result_rows, strict=True))
    return Part(kept(program, keep), inputs, outputs)


def gradient_dtype(name: str) -> tuple[str, int]:
    """A program's name and the bytes of an element. Raises FlintError FL240 for other names."""
    if name not in GRADIENT_DTYPES:
        raise FlintError(
            "FL240",
            f"gradients cannot be accumulated in '{name}'{nearest(name, list(GRADIENT_DTYPES))}",
            help="choose float32, bfloat16, float16 or float64",
        )
    return GRADIENT_DTYPES[name]


def in_gradient_dtype(part: Part, name: str) -> Part:
    """The part with every tensor in the type `name`; "" leaves it as it is."""
    if not name:
        return part
    dtype, size = gradient_dtype(name)
    program = part.program
    sizes = np.array([_element_bytes(d, size) for d in program.dtypes], dtype=np.int64)
    now = sizes[program.dtype]
    dtypes, index = with_value(program.dtypes, dtype)
    columns = {
        column: getattr(program, column) * size // now
        for column in ("result_bytes", "operand_bytes", "comm_bytes")
    }
    floats = np.array([d in ("", dtype) or d in _FLOATS for d in program.dtypes], dtype=np.bool_)
    is_float = floats[program.dtype]
    columns = {c: np.where(is_float, v, getattr(program, c)) for c, v in columns.items()}
    retyped = np.where(is_float, index, program.dtype).astype(program.dtype.dtype)
    return replace(part, program=program.with_rows(dtype=retyped, dtypes=dtypes, **columns))


_FLOATS: dict[str, int] = dict(GRADIENT_DTYPES.values())


def _element_bytes(dtype: str, otherwise: int) -> int:
    return _FLOATS.get(dtype, otherwise)


def in_flight(order: Sequence[Unit], chunk: int) -> int:
    """The most microbatches of a chunk whose saved activations a position holds at one time."""
    own = [u for u in order if u.chunk == chunk]
    works = {u.work for u in own}
    release = Work.WEIGHT_BACKWARD if Work.WEIGHT_BACKWARD in works else Work.BACKWARD
    held = most = 0
    for unit in own:
        held += (unit.work is Work.FORWARD) - (unit.work is release)
        most = max(most, held)
    return most


def saved_keys(parts: StageParts) -> dict[Key, tuple[Part, int]]:
    """What a backward pass reads of its microbatch's forward pass: key to (part, PARAMETER row)."""
    gathered = parts.gather.outputs if parts.gather is not None else {}
    found: dict[Key, tuple[Part, int]] = {}
    given = parts.backward.outputs if parts.backward is not None else {}
    for part in (parts.backward, parts.weights):
        for key, row in part.inputs.items() if part is not None else ():
            if is_saved(key) and key not in gathered and key not in given:
                assert part is not None
                found.setdefault(key, (part, row))
    return found


def is_saved(key: Key) -> bool:
    """Whether a backward pass reads this from an earlier pass of its microbatch."""
    return isinstance(key, Saved) or (isinstance(key, Port) and key.role is Role.INPUT)


def saved_bytes(parts: StageParts) -> int:
    """Bytes of activations that one microbatch keeps on a device until its backward pass."""
    return sum(int(part.program.result_bytes[row]) for part, row in saved_keys(parts).values())


def partial_keys(parts: StageParts) -> dict[Partial, tuple[Part, int]]:
    """The gradients that passes of a microbatch give: key to (part, row)."""
    return {
        key: (part, row)
        for part in (parts.backward, parts.weights)
        if part is not None
        for key, row in part.outputs.items()
        if isinstance(key, Partial)
    }
