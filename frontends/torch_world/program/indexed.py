"""Kernels that find the place of each element by themselves, as PyTorch's own do for some operators.

Where all arrays of an element-wise operator or of a copy lie alike, its kernel takes 16 bytes at once.
Where one is broadcast, turned, cut out of a larger one or of a narrower type than the result, or
where several are put together, it computes an offset into each array for every element and moves
elements one by one (`elementwise_kernel`, `unrolled_elementwise_kernel` and `CatArrayBatchedCopy` in
profiles, instead of `vectorized_elementwise_kernel`).
"""

from __future__ import annotations

from flint.frontends.torch_world.program.names import is_foreach
from flint.frontends.torch_world.program.operands import num_elements, read, results
from flint.frontends.torch_world.record.recording import GAPS, Event
from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, LAYOUT, OpClass

_BY_INDEX = frozenset({OpClass.GATHER, OpClass.SCATTER})
_COPIES = (LAYOUT | DATA_MOVEMENT) - _BY_INDEX
#: They have results made of parts.
_OF_PARTS = frozenset({OpClass.CONCATENATE, OpClass.PAD})


def is_indexed(event: Event, op: OpClass) -> bool:
    """Whether the kernel of an operator of this class computes the place of every element."""
    if op not in ELEMENTWISE | _COPIES or not event.op.startswith("aten.") or is_foreach(event.op):
        return False
    if op in _OF_PARTS:
        return True
    stored = results(event)[:1]
    reads = [t for t in read(event) if num_elements(t) > 1]
    if not stored or not reads:
        return False
    (result,) = stored
    orders = {t.order for t in (*reads, result)}
    return (
        len(orders) > 1
        or GAPS in orders
        or any(num_elements(t) != num_elements(result) for t in reads)
        or any(_item(t.dtype) < _item(result.dtype) for t in reads)
    )


def _item(dtype: str) -> int:
    """Bytes of an element, by the digits in the name of its type."""
    digits = "".join(c for c in dtype.partition("E")[0] if c.isdigit())
    return max(int(digits or 8) // 8, 1)
