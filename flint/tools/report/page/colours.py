"""Which color a kind of work has: one for each family, the same in every chart.

Computation is in cool colors, communication in warm ones, idle time in grey. The colors themselves
are in parts.css, for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Family of each kind of a `Share`. A family is the name of a color in parts.css.
_FAMILIES = {
    "product": ("gemm", "convolution"),
    "attention": ("attention", "attention_backward"),
    "element": ("elementwise", "random"),
    "reduction": ("reduction", "softmax", "norm"),
    "move": ("copy", "gather", "scatter", "sort", "top_k", "fft"),
    "optimizer": ("optimizer",),
    "declared": ("declared", "unpriced"),
    "all-reduce": ("all_reduce",),
    "all-gather": ("all_gather",),
    "reduce-scatter": ("reduce_scatter",),
    "all-to-all": ("all_to_all", "ragged_all_to_all"),
    "message": ("message", "permute", "broadcast", "host_copy"),
    "idle": ("wait", "host"),
}
FAMILY = {kind: family for family, kinds in _FAMILIES.items() for kind in kinds}
#: What people read for a family.
TITLES = {
    "product": "matrix products",
    "attention": "attention",
    "element": "element-wise",
    "reduction": "reductions, norms",
    "move": "copies, gathers, sorts",
    "optimizer": "optimizer",
    "declared": "declared kernels",
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "message": "messages, permutes, host copies",
    "idle": "waiting",
}


def family(kind: str) -> str:
    """The family of a kind of work; `declared` for one that has none."""
    return FAMILY.get(kind, "declared")


def families(kinds: Iterable[str]) -> list[str]:
    """The families of some kinds, in the order of `TITLES`."""
    found = set(map(family, kinds))
    return [name for name in TITLES if name in found]


#: Colors of things that have no family: phases, kinds of memory, axes, scopes, in their order.
SERIES = tuple(f"s{number}" for number in range(1, 11))
#: Phases and passes of a pipeline.
PHASES = {
    "forward": "s1",
    "backward": "s3",
    "input_backward": "s3",
    "weight_backward": "s4",
    "remat": "s5",
    "optimizer": "s6",
    "other": "s10",
    "waiting": "idle",
}
#: Kinds of memory.
MEMORY = {
    "parameters": "s1",
    "optimizer_state": "s6",
    "state": "s6",
    "inputs": "s9",
    "gradients": "s3",
    "saved_activations": "s4",
    "pipeline_stash": "s5",
    "gathered": "s2",
    "outputs": "s8",
    "temporaries": "s10",
    "fragmentation": "s7",
    "runtime": "s8",
}


def series(number: int) -> str:
    """The color of the n-th of several things; after the last they begin again."""
    return SERIES[number % len(SERIES)]
