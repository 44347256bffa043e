"""Programs on which the two partitioners differ, why, and by how much at most.

Everything else in the zoo must be equal. `low` and `high` bound what Shardy's program sends over
what XLA's program sends (ring bytes per device); a difference that disappears fails the test too.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Reasons by name. docs/partitioners.md prints them.
REASONS: dict[str, str] = {
    "gathered and sliced": (
        "A token table sharded over its hidden dimension by one of two axes that the batch has. Both "
        "look up columns for all tokens of the axis and exchange activations; XLA's partitioner also "
        "gathers activations over the other axis and slices them again, which its compilers undo."
    ),
    "in steps": (
        "A token table sharded over both dimensions on a mesh with a third axis: XLA moves the "
        "looked-up rows by two permutes over all three axes, for sub-axes that Shardy does not use."
    ),
    "unpinned backward": (
        "Activations between blocks are sharded over the sequence, and nothing pins what is inside a "
        "block; weights are sharded over the batch's axis too. The forward passes agree. In gradients "
        "of weights, sums over both axes meet a result that wants both: XLA sums over the batch's "
        "axis first, with the other axis whole, where Shardy keeps it. Without FSDP, or with the "
        "inside of blocks pinned (`..._pinned`, as in examples/llama_jax.py), they agree."
    ),
    "two levels": (
        "Gradients are summed over replicas and over the axis that shards the weight. Shardy "
        "reduces over both axes and keeps a part; XLA reduces over one, keeps the part, and "
        "reduces that over the other. A ring sends the same bytes."
    ),
    "computed twice": (
        "The program computes the same value twice (the mean, and the mean inside the variance; "
        "a weight gathered for two readers). Flint merges equal operations before communication "
        "is counted; XLA's partitioner runs before that merge and writes both collectives."
    ),
    "whole operand": (
        "The largest few. XLA's partitioner knows the operation in the form that its compilers give "
        "it before, and alone gathers the whole operand. Flint finds them as the compilers do: each "
        "device of its part, and what they found is gathered."
    ),
    "operand or result": (
        "The summed dimension of a product in a loop is sharded in one operand only. Shardy "
        "gathers that operand, XLA moves its shards to where the weight's shards are and "
        "all-reduces the result."
    ),
    "odd and even": (
        "Every level of an associative scan takes odd and even elements and shorter halves, "
        "which no longer divide by the axis. Both partitioners shift the same boundary elements; "
        "Shardy reshards two more small halves."
    ),
}


@dataclass(frozen=True)
class Difference:
    """Why one program differs, and bounds on Shardy's bytes over XLA's."""

    reason: str
    low: float
    high: float


DIFFERENCES: dict[str, Difference] = {
    "llama_hsdp": Difference("gathered and sliced", 0.98, 1.0),
    "llama_3_axes": Difference("in steps", 0.97, 1.03),
    "llama_3_axes_pinned": Difference("two levels", 1.0, 1.0),
    "llama_3_axes_pinned_noremat": Difference("two levels", 1.0, 1.0),
    "llama_fsdp_tp_sp_pinned": Difference("computed twice", 0.77, 0.83),
    "llama_4_axes": Difference("unpinned backward", 0.8, 0.88),
    "resnet_dp": Difference("computed twice", 0.99, 1.0),
    "resnet_spatial": Difference("computed twice", 0.82, 0.88),
    "resnet_spatial_infer": Difference("computed twice", 0.96, 1.0),
    "op_topk_free": Difference("whole operand", 0.02, 0.05),
    "op_map": Difference("operand or result", 1.28, 1.38),
    "op_associative_scan": Difference("odd and even", 0.97, 1.03),
}

#: Equal once reduce-scatters are read as the all-reduces (and slices) that they replace, and
#: all-reduces over several axes as one for each. XLA forms both in passes after its partitioner.
EQUAL_IN_NORMAL_FORM = frozenset(
    {
        "llama_fsdp",
        "llama_fsdp_unrolled",
        "llama_fsdp_noremat",
        "llama_tp_sp",
        "llama_dp_tp_sp",
        "llama_fsdp_tp",
        "llama_fsdp_2_axes",
        "llama_fsdp_pinned",
        "llama_fsdp_pinned_noremat",
        "llama_tp_sp_pinned",
        "llama_tp_sp_pinned_noremat",
        "llama_fsdp_tp_pinned",
        "llama_fsdp_tp_pinned_noremat",
        "llama_fsdp_tp_sp",
        "llama_fsdp_tp_sp_pinned_noremat",
        "moe_einsum",
        "moe_einsum_infer",
        "moe_einsum_tp",
        "ring_attention_dp",
    }
)
