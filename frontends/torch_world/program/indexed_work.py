"""The work of recorded operators whose indices name rows: look-ups, gathers and scatters."""

from __future__ import annotations

import math

from flint.frontends.torch_world.program.names import base_name
from flint.frontends.torch_world.program.operands import num_elements, results
from flint.frontends.torch_world.record.recording import Event
from flint.passes.work import formulas
from flint.passes.work.work import Work


def embedding(e: Event) -> Work:
    table, found = e.inputs[0], e.outputs[0]
    return formulas.gather(
        found.num_bytes, e.inputs[-1].num_bytes, num_elements(found), table.shape[-1]
    )


def embedding_bag(e: Event) -> Work:
    """Reads one row for each index and adds it to its bag."""
    table, indices = e.inputs[:2]
    size = table.shape[-1]
    rows = num_elements(indices)
    row_bytes = table.num_bytes // max(table.shape[0], 1)
    others = sum(t.num_bytes for t in e.inputs[1:])
    return Work(flops=rows * size, operand_bytes=rows * row_bytes + others)


def added_rows(e: Event) -> Work:
    """One addition for each element of the gradient of an embedding."""
    elements, row = num_elements(e.inputs[0]), e.inputs[0].shape[-1]
    return Work(flops=elements, dims=formulas.row_dims(elements, row))


def gather(e: Event) -> Work:
    """All but the first operand are indices, each of which names a row of what is left."""
    found = results(e)
    elements = sum(map(num_elements, found))
    indices = e.inputs[1:]
    named = max(map(num_elements, indices), default=0)
    row = max(elements // max(named, 1), 1)
    if base_name(e.op) == "index_select":
        row = _behind(e)
    index_bytes = sum(t.num_bytes for t in indices)
    return formulas.gather(sum(t.num_bytes for t in found), index_bytes, elements, row)


def _behind(e: Event) -> int:
    """Elements behind the dimension of an operator, which lie together."""
    shape, dim = e.inputs[0].shape, e.attributes.get("dim", 0)
    return math.prod(shape[dim % max(len(shape), 1) + 1 :])


def scatter(e: Event) -> Work:
    """Reads updates and indices and writes the updates; adds only if it accumulates."""
    update = _updates(e)
    name = base_name(e.op)
    adds = bool(e.attributes.get("accumulate")) or name in ("index_add", "scatter_add")
    item_bytes = e.inputs[0].num_bytes // max(num_elements(e.inputs[0]), 1)
    flops = update if adds or name == "scatter_reduce" else 0
    dims = formulas.row_dims(update, _updated_row(e))
    if not e.writes:
        return Work(flops=flops, dims=dims)
    places = update * item_bytes
    others = sum(t.num_bytes for t in e.inputs[1:])
    return Work(
        flops=flops,
        dims=dims,
        operand_bytes=others + (places if flops else 0),
        result_bytes=places,
        in_place=True,
    )


def _updated_row(e: Event) -> int:
    if _puts(e):
        return math.prod(e.inputs[0].shape[len(e.inputs[1:-1]) :])
    return _behind(e) if base_name(e.op).startswith("index_") else 1


def _puts(e: Event) -> bool:
    """Whether there is an index for each of the first dimensions."""
    return base_name(e.op).endswith("index_put") or "_index_put_impl" in e.op


def _updates(e: Event) -> int:
    """Elements that a scatter stores; its value may be one number for all of them."""
    target, given = e.inputs[0], e.inputs[1:]
    update = num_elements(given[-1]) if given else 0
    if not _puts(e):
        return max(update, num_elements(given[0]) if given else 0)
    indices = given[:-1]
    if any(t.dtype == "i1" for t in indices):
        return num_elements(target)  # a mask may name every element
    rest = math.prod(target.shape[len(indices) :])
    named = max((num_elements(t) for t in indices), default=1)
    return max(update, named * rest)
