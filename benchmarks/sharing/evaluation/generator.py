"""What makes workloads: the generator that is judged, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from benchmarks.sharing.evaluation.corpus import Capture
from benchmarks.sharing.evaluation.measuring.cache import digest_of
from flint.io.files import write_atomically
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions


class Generator(Protocol):
    """Something trained, which makes one workload for each conditions and seed."""

    def sample(self, conditions: Conditions, seed: int) -> Workload:
        """A workload of about these totals; the same for the same seed.

        Raises FlintError if it has none.
        """
        ...


#: Makes a generator of training captures and a seed. It sees nothing else.
Trainer = Callable[[Sequence[Capture], int], Generator]


def flint_generator(steps: int, models: Path | None) -> Trainer:
    """The trainer of Flint's own generator, `steps` steps long.

    What it trains it writes into the folder `models`, and takes from there what is of the same captures,
    steps and seed.
    """
    from flint.tools.share.synth.generator import Generator as Synth
    from flint.tools.share.synthesize import examples_of, learned

    def trained(captures: Sequence[Capture], seed: int) -> Generator:
        path = None if models is None else models / f"{_digest(captures, steps, seed)}.npz"
        if path is not None and path.exists():
            return Synth.load(path)
        families = {c.file: c.family for c in captures}
        named = [(c.file, c.workload) for c in captures]
        found = learned(examples_of(named, families.__getitem__), seed=seed, steps=steps)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, found.to_bytes())
        return found

    return trained


def _digest(captures: Sequence[Capture], steps: int, seed: int) -> str:
    """A name for a training: of what captures hold, their families, steps and seed."""
    parts = [f"{steps} {seed}", *(f"{c.family} {digest_of(c.workload)}" for c in captures)]
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
