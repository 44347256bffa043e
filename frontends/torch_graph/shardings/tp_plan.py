"""Tensor-parallel plans of HuggingFace models: what each style means for tensors of a module.

A plan maps globs over module paths to styles: `{"layers.*.self_attn.q_proj": "colwise"}`. The
meanings are those of transformers 5.23, `distributed/tensor_parallel.py` and
`distributed/expert_parallel.py`, with the names of earlier releases beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


class Layout(Enum):
    """How an activation lies over the tensor axis."""

    WHOLE = "whole"  #: every device has all of it
    FEATURES = "features"  #: sharded in its last dimension
    SEQUENCE = "sequence"  #: sharded in dimension 1


@dataclass(frozen=True)
class Style:
    """What a style shards: a dimension of weights and of vectors, and what the module returns.

    Dimensions count from the end when negative; None is not sharded. A layout of None says
    nothing. What goes into the module follows from both. `packed` is a weight that joins two
    (gate and up), each sharded by itself in PyTorch.
    """

    weight: int | None = None
    vector: int | None = None
    output: Layout | None = None
    packed: bool = False


_WHOLE, _FEATURES, _SEQUENCE = Layout.WHOLE, Layout.FEATURES, Layout.SEQUENCE

#: Style by name. A linear weight is (out, in); one of experts is (expert, out, in).
STYLES: dict[str, Style] = {
    "colwise": Style(-2, -1, output=_FEATURES),
    "colwise_gather_output": Style(-2, -1, output=_WHOLE),
    "colwise_rep": Style(-2, -1, output=_WHOLE),
    "local_colwise": Style(-2, -1),
    "packed_colwise": Style(-2, -1, packed=True),
    "local_packed_colwise": Style(-2, -1, packed=True),
    "rowwise": Style(-1, output=_WHOLE),
    "rowwise_split_input": Style(-1, output=_WHOLE),
    "rowwise_rep": Style(-1, output=_WHOLE),
    "local_rowwise": Style(-1),
    "packed_rowwise": Style(-1, packed=True),
    "local_packed_rowwise": Style(-1, packed=True),
    "embedding_rowwise": Style(-2, output=_WHOLE),
    "embedding_colwise": Style(-1, output=_WHOLE),
    "sequence_parallel": Style(output=_SEQUENCE),
    "grouped_gemm": Style(0, 0),
    # What these do beyond their weights' shardings (sums of partial results and of partial
    # gradients) follows from the shardings of what they compute with.
    "all_reduce": Style(output=_WHOLE),
    "gather": Style(output=_WHOLE),
    "moe_tp_experts": Style(output=_WHOLE),
    "ep_dispatch_experts": Style(),
    "ep_router": Style(),
    "isolated": Style(),
    "local": Style(),
    "local_params": Style(),
    "mla_kv_a_proj": Style(),
    "moe_identity_expert": Style(),
    "replicate": Style(),
    "replicated_with_grad_allreduce": Style(),
}


def checked_plan(plan: object, where: str) -> Mapping[str, str]:
    """The plan, if it is one: a mapping of globs to names of styles. Raises FlintError FL222."""
    if not isinstance(plan, Mapping) or not plan:
        raise FlintError(
            "FL222",
            f"the tensor-parallel plan is {type(plan).__name__ if plan else 'empty'}, not a "
            "mapping of module paths to styles",
            place=where,
            help="pass model.tp_plan of a HuggingFace model that has one, or write "
            '{"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}',
        )
    for pattern, style in plan.items():
        if not isinstance(style, str) or style not in STYLES:
            raise FlintError(
                "FL222",
                f"'{style}' of '{pattern}' is not a tensor-parallel style{nearest(str(style), list(STYLES))}",
                place=where,
                help=f"known styles: {', '.join(sorted(STYLES))}",
            )
    return plan


def sharded_dimension(style: Style, rank: int) -> int | None:
    """The dimension, from 0, of a parameter with `rank` dimensions that `style` shards, or None."""
    dimension = style.weight if rank > 1 else style.vector
    if dimension is None or rank == 0:
        return None
    return dimension % rank


def layout_spec(
    layout: Layout, shape: tuple[int, ...], axis: str, mesh: Mesh, *, sequence: bool
) -> PartitionSpec | None:
    """The constraint on an activation that a plan over `axis` makes, or None where it makes none.

    Dimensions that the plan says nothing about stay open, so that batches keep their axes. In a
    plan with sequence parallelism (`sequence`), dimension 1 of an activation of three or more is
    sharded over the axis or over none. An axis that does not divide a dimension is omitted.
    """
    from jax.sharding import PartitionSpec

    if not shape:
        return None
    entries: list[Any] = [PartitionSpec.UNCONSTRAINED] * len(shape)
    entries[-1] = axis if layout is Layout.FEATURES else None
    if sequence and len(shape) > 2:
        entries[1] = axis if layout is Layout.SEQUENCE else None
    sharded = (n for n, entry in enumerate(entries) if entry == axis)
    if any(shape[n] % mesh.axis_size(axis) for n in sharded):
        return None
    return PartitionSpec(*entries)
