"""The work of custom calls of StableHLO: attention, factorizations, kernels that are written by hand."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from typing import Any

from flint.ir.op_class import OpClass
from flint.ir.product_types import by_block
from flint.passes.extract.products import product_of
from flint.passes.extract.tensors import Operation, Tensor
from flint.passes.mlir import (
    FRONTEND_ATTRIBUTES,
    attention_mask,
    attention_name,
    is_attention,
    is_attention_backward,
    is_heads_first,
)
from flint.passes.work import formulas
from flint.passes.work.declared import ArrayType, KernelCall, declared_in
from flint.passes.work.formulas import FACTORIZATIONS
from flint.passes.work.hand_written import BLOCKS, PALLAS_TARGETS, work_of_call, work_of_kernel
from flint.passes.work.host_copies import CALLBACK, CALLBACK_TARGET
from flint.passes.work.work import Work


def work_of_custom_call(o: Operation) -> Work:
    """Known targets are priced from shapes, others by the cost estimate that they carry."""
    target = o.op.attributes["call_target_name"].value
    if target.startswith(CALLBACK_TARGET):
        return Work(op=OpClass.HOST_VALUE, called=CALLBACK, operand_bytes=0, result_bytes=0)
    if is_attention(target):
        return _attention(o, target, _config(o.op))
    if target == formulas.SCALED_DOT:
        batch_size, rows, k = o.operands[0].shape
        product = by_block(product_of(o))
        found = formulas.product(batch_size, rows, o.operands[1].shape[1], k, product=product)
        return replace(found, op=OpClass.MATMUL)
    if target in FACTORIZATIONS:
        *batch, m, n = o.operands[0].shape
        return FACTORIZATIONS[target](math.prod(batch), m, n)
    config = _config(o.op)
    estimate, attributes = declared_in(config)
    given = {**_attributes(o.op), **attributes}
    if FRONTEND_ATTRIBUTES in o.op.attributes and BLOCKS in o.op.attributes[FRONTEND_ATTRIBUTES]:
        given[BLOCKS] = o.op.attributes[FRONTEND_ATTRIBUTES][BLOCKS].value
    call = KernelCall(_arrays(o.operands), _arrays(o.results), given)
    if target in PALLAS_TARGETS:
        return work_of_kernel(_kernel_name(o.op, config), call, estimate)
    return work_of_call(target, call, estimate)


def _arrays(tensors: tuple[Tensor, ...]) -> tuple[ArrayType, ...]:
    return tuple([ArrayType(t.shape, t.dtype, t.num_bytes) for t in tensors])


def _attributes(op: Any) -> dict[str, Any]:
    """What a call of the foreign-function interface was given by name: numbers and texts."""
    from jaxlib.mlir import ir

    key = "mhlo.backend_config"
    if key not in op.attributes or not isinstance(op.attributes[key], ir.DictAttr):
        return {}
    found = {}
    for named in op.attributes[key]:
        # Some have no value, and the bytes of a compiled kernel are no text.
        with contextlib.suppress(AttributeError, RuntimeError):
            found[named.name] = named.attr.value
    return found


def _kernel_name(op: Any, config: dict[str, Any]) -> str:
    """Mosaic keeps it beside the configuration, Flint's own lowering in it."""
    if "kernel_name" in op.attributes:
        return str(op.attributes["kernel_name"].value)
    return str(config.get("name", ""))


def _attention(o: Operation, target: str, config: dict[str, Any]) -> Work:
    """Queries are (batch, heads, sequence, size) or (batch, sequence, heads, size), as the call's
    configuration says.
    """
    q, k, v = o.operands[:3]
    sequence = 2 if is_heads_first(o.op) else 1
    queries, size = int(q.shape[sequence]), q.shape[-1]
    found = formulas.attention(
        q.num_elements // max(size * queries, 1),
        queries,
        int(k.shape[sequence]),
        size,
        v.shape[-1],
        backward=is_attention_backward(target),
        product=product_of(o),
    )
    mask = attention_mask(target, config)
    return replace(found, mask=mask, called=attention_name(target, mask))


def _config(op: Any) -> dict[str, Any]:
    """The backend configuration of a custom call as a JSON object; empty if it is none."""
    for key in ("backend_config", "mhlo.backend_config"):
        text = getattr(op.attributes[key], "value", "") if key in op.attributes else ""
        if isinstance(text, str | bytes):
            try:
                document = json.loads(text or "{}")
            except ValueError:
                continue
            if isinstance(document, dict):
                return document
    return {}
