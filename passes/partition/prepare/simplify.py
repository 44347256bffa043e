"""What XLA's compilers do to a program before shardings propagate: docs/decisions/0073-*.md.

XLA's partitioner alone, which runs here, does not.
"""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import make_context, write_bytecode
from flint.passes.partition.as_xla.products import split_broadcasts
from flint.passes.partition.as_xla.zeros import (
    drop_added_zeros,
    join_reshapes,
    pad_with_constants,
)
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.scans import scans_as_windows
from flint.passes.partition.prepare.searches import call_searches
from flint.passes.partition.prepare.single_index import expand_single_indices
from flint.passes.partition.prepare.transposed import exchange_operands


def simplified(bytecode: bytes) -> bytes:
    """A StableHLO module as XLA's partitioner gets it. To be called where MLIR may be loaded.

    What cannot be read stays as it is: XLA says why.
    """
    from jaxlib.mlir import ir

    with make_context():
        try:
            module = ir.Module.parse(bytecode)
        except ir.MLIRError:
            return bytecode
        inline_calls(module)
        simplify(module, bytecode)
        exchange_operands(module)
        call_searches(module)
        return write_bytecode(module)


def simplify(module: Any, bytecode: bytes) -> None:
    """Simplify `module`, which `bytecode` was parsed to, in place."""
    if b"scan" in bytecode:
        scans_as_windows(module)
    if any(name in bytecode for name in (b"gather", b"scatter", b"dynamic_slice")):
        expand_single_indices(module)
    drop_added_zeros(module)
    split_broadcasts(module)
    join_reshapes(module)
    pad_with_constants(module)
