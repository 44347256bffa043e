"""Checkpoints, and states of random generators by name, which have no values here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.checkpoint import checkpoint as torch_checkpoint

from flint.tools.stand_ins.transformer_engine.groups import gather_rows, reduce_scatter_rows
from flint.tools.stand_ins.transformer_engine.layers.linear import refuse

__all__ = [
    "CudaRNGStatesTracker",
    "activation_recompute_forward",
    "checkpoint",
    "gather_along_first_dim",
    "is_fp8_activation_recompute_enabled",
    "reduce_scatter_along_first_dim",
]


class CudaRNGStatesTracker:
    """States of generators by name."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Any]:
        """All states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Take over states."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """A new state."""
        self.seeds_.add(seed)
        self.states_[name] = seed

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Inside, numbers are drawn from another state."""
        yield


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Any = None,
    tp_group: Any = None,
    use_reentrant: bool = True,
    **kwargs: Any,
) -> Any:
    """Run a function, and again in the backward pass, keeping its inputs alone."""
    if distribute_saved_activations:
        raise refuse("distribute_saved_activations", "turn it off")
    if kwargs:
        use_reentrant = False
    return torch_checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)


@contextmanager
def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> Iterator[None]:
    """Inside, a checkpoint runs: scales of fp8 would be kept for when it runs again."""
    yield


def gather_along_first_dim(
    inp: Any, process_group: Any, async_op: bool = False, **options: Any
) -> Any:
    """The rows of all ranks, and what to wait for."""
    return gather_rows(inp, process_group, asynchronous=async_op)


def reduce_scatter_along_first_dim(inp: Any, tp_group: Any, async_op: bool = False) -> Any:
    """This rank's rows of the sum over ranks, and what to wait for."""
    return reduce_scatter_rows(inp, tp_group, asynchronous=async_op)


def is_fp8_activation_recompute_enabled() -> bool:
    """Whether a checkpoint runs again in fp8: scales have no values here."""
    return False
