"""What gradients are accumulated and reduced in, where that is not their own type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.errors import FlintError, nearest
from flint.ir.columns import with_value
from flint.passes.pipeline.split.parts import Part

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
_BYTES: dict[str, int] = dict(GRADIENT_DTYPES.values())


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
    """The part with every floating tensor in the type `name`; "" leaves it as it is.

    Raises FlintError FL240 for names that are not in `GRADIENT_DTYPES`.
    """
    if not name:
        return part
    dtype, size = gradient_dtype(name)
    program = part.program
    now = np.array([_BYTES.get(d, 0) for d in program.dtypes], dtype=np.int64)[program.dtype]
    is_float = now > 0
    dtypes, index = with_value(program.dtypes, dtype)
    columns = {
        column: np.where(is_float, values * size // np.maximum(now, 1), values)
        for column in ("result_bytes", "operand_bytes", "comm_bytes")
        for values in (getattr(program, column),)
    }
    retyped = np.where(is_float, index, program.dtype).astype(program.dtype.dtype)
    return replace(part, program=program.with_rows(dtype=retyped, dtypes=dtypes, **columns))
