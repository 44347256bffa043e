"""What makes workloads: the generator that is judged, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.sharing.evaluation.corpus import Capture
from flint.ir.workload import Workload
from flint.sharing.conditions import Conditions


class Generator(Protocol):
    """Something trained, which makes one workload for each conditions and seed."""

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """A workload of about these totals; the same for the same seed.

        Raises FlintError if it has none.
        """
        ...


#: Makes a generator of training captures and a seed. It sees nothing else.
Trainer = Callable[[Sequence[Capture], int], Generator]


def flint_generator(budget: float) -> Trainer:
    """The trainer of Flint's own generator; `budget` are the CPU seconds of its training."""
    from flint.sharing.synth import train

    def trained(captures: Sequence[Capture], seed: int) -> Generator:
        return train([c.workload for c in captures], seed, budget)

    return trained
