"""What an event reads, makes and writes: its tensors by what happens to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flint.frontends.torch_world.program.names import base_name, is_foreach
from flint.frontends.torch_world.record.recording import GAPS, CommKind, Event, TensorInfo
from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, LAYOUT, OpClass
from flint.ir.program import Collective

#: Operators that write without reading what was there.
_OVERWRITING = frozenset(
    ("bernoulli", "cauchy", "copy", "exponential", "fill", "geometric", "log_normal", "normal")
    + ("random", "uniform", "zero")
)
#: Operators that write their first result into memory that they are given, and do not say so.
_SILENT_WRITES = frozenset({"fsdp.all_gather_copy_in.default"})
#: Operators that put rows into a copy of their first operand.
_PUTTING = frozenset(
    ("index_copy", "index_put", "_unsafe_index_put", "scatter", "select_scatter", "slice_scatter")
)
#: Losses that make that of each element first, and their sum or mean in the same memory: ATen's `resize_` to
#: a number keeps it (Loss.cpp, Loss.cu).
_LOSSES = frozenset(("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"))
#: Collectives whose result takes the place of their input.
_UPDATING = (Collective.ALL_REDUCE, Collective.BROADCAST)


def num_elements(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape)


def total_elements(tensors: Iterable[TensorInfo]) -> int:
    return sum(map(num_elements, tensors))


def made(event: Event) -> tuple[TensorInfo, ...]:
    """Results in memory of their own: neither views nor updates of an input."""
    if event.is_view or not event.outputs:
        return ()
    read = {t.storage for t in event.inputs}
    return tuple([t for t in event.outputs if t.storage not in read])


def written(event: Event) -> tuple[TensorInfo, ...]:
    """The tensors that the event changes in place, as wide as it sees them.

    An update returns what it wrote; operators that return nothing (`_foreach_add_`) wrote those
    of their inputs that lie in the storages written.
    """
    changed = set(event.writes)
    if not changed:
        return ()
    returned = {t.storage for t in event.outputs} & changed
    found = [t for t in event.outputs if t.storage in returned]
    rest = changed - returned
    found += [t for t in event.inputs if t.storage in rest]
    return tuple(found)


def results(event: Event) -> tuple[TensorInfo, ...]:
    """All that the event stores: new tensors, then updates; empty ones last.

    The first says what is made: Transformer Engine adds a weight's gradient to `main_grad`, and
    returns one without elements.
    """
    if not event.writes:
        return made(event)
    fresh = tuple(t for t in made(event) if t.storage not in event.writes)
    return tuple(sorted(fresh + written(event), key=lambda t: t.num_bytes == 0))


def memory_bytes(event: Event, result: TensorInfo) -> int:
    """The bytes of the memory that a fresh result lies in, which may be larger."""
    if result.shape or event.call.number or base_name(event.op) not in _LOSSES:
        return result.num_bytes
    return max(t.num_bytes for t in (result, *event.inputs))


def corrected(event: Event) -> Event:
    """The event with the writes that its operator omits, and without the memory that it is given."""
    if event.op not in _SILENT_WRITES:
        return event
    first = event.outputs[:1]
    writes = tuple(t.storage for t in first)
    given = tuple(t for t in event.inputs if t.storage not in writes)
    return replace(event, inputs=given, outputs=first, writes=writes, is_view=False)


def is_meeting(event: Event) -> bool:
    """Whether it is a barrier, or a collective of objects: no tensor of the device is in it."""
    return event.comm is not None and not event.inputs and not event.outputs


def does_nothing(event: Event) -> bool:
    """Whether the operator neither makes nor changes a tensor: questions, such as `prim.device`."""
    return event.comm is None and not event.outputs and not event.writes


def read(event: Event) -> tuple[TensorInfo, ...]:
    """The tensors that the event reads: its inputs without those that it only overwrites."""
    if not event.writes or not _overwrites(event):
        return event.inputs
    overwritten = {(t.storage, t.extent) for t in written(event)}
    return tuple(t for t in event.inputs if (t.storage, t.extent) not in overwritten)


def base_storage(event: Event) -> int:
    """The storage of the tensor into which an operator puts rows, or -1; it may hold no values."""
    return event.inputs[0].storage if base_name(event.op) in _PUTTING else -1


def _overwrites(event: Event) -> bool:
    if event.comm is not None:
        updates = event.comm.collective in _UPDATING and event.comm.kind is CommKind.COLLECTIVE
        return not updates and event.comm.kind is not CommKind.SEND
    overload = event.op.rpartition(".")[2]
    if event.op.startswith("fsdp."):
        return True
    return base_name(event.op) in _OVERWRITING or overload == "out" or overload.endswith("_out")


def is_view(event: Event) -> bool:
    """Whether no bytes move: all results lie in memory of inputs, and nothing is written.

    `aten._unsafe_view` is one, though PyTorch does not call it so.
    """
    if event.is_view or event.writes or event.comm is not None or not event.outputs:
        return event.is_view
    return not made(event)


# Kernels that find the place of each element by themselves, as PyTorch's own do for some operators.
#
# Where all arrays of an element-wise operator or of a copy lie alike, its kernel takes 16 bytes at once.
# Where one is broadcast, turned, cut out of a larger one or of a narrower type than the result, or
# where several are put together, it computes an offset into each array for every element and moves
# elements one by one (`elementwise_kernel`, `unrolled_elementwise_kernel` and `CatArrayBatchedCopy` in
# profiles, instead of `vectorized_elementwise_kernel`).

_BY_INDEX = frozenset({OpClass.GATHER, OpClass.SCATTER})
_COPIES = (LAYOUT | DATA_MOVEMENT) - _BY_INDEX
#: Most channels of an image: three colors and what is opaque.
IMAGE_CHANNELS = 4
#: They have results made of parts.
_OF_PARTS = frozenset({OpClass.CONCATENATE, OpClass.PAD})


def is_indexed(event: Event, op: OpClass) -> bool:
    """Whether the kernel of an operator of this class computes the place of every element.

    A convolution does for each place in a window. It shows where a place has few numbers: of images.
    """
    if op in (OpClass.CONVOLUTION, OpClass.CONVOLUTION_BACKWARD):
        return _is_of_images(event, event.inputs[1 if op is OpClass.CONVOLUTION else 2].shape)
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


def _is_of_images(event: Event, weight: Sequence[int]) -> bool:
    whole = not event.attributes.get("transposed") and int(event.attributes.get("groups", 1)) == 1
    return whole and weight[1] <= IMAGE_CHANNELS < math.prod(weight[1:])


def _item(dtype: str) -> int:
    """Bytes of an element, by the digits in the name of its type."""
    digits = "".join(c for c in dtype.partition("E")[0] if c.isdigit())
    return max(int(digits or 8) // 8, 1)
