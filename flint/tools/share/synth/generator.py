"""The generator: a row model with its vocabulary, which makes workloads of given totals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.axis_labels import comm_bytes_by_label
from flint.tools.share.conditions import Conditions, flops_of, phase_shares
from flint.tools.share.depth import depth_of
from flint.tools.share.rules import broken_rules
from flint.tools.share.synth.codec.pruning import pruned
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.template import Vocabulary
from flint.tools.share.synth.codec.writer import write_program
from flint.tools.share.synth.drawing import Pen, draw, redraw
from flint.tools.share.synth.exemplar import exemplar
from flint.tools.share.synth.fitting import fitted
from flint.tools.share.synth.following import weights_of
from flint.tools.share.synth.generator_file import read, to_bytes
from flint.tools.share.synth.memory import Memory
from flint.tools.share.synth.model.row_model import RowModel

#: Programs that are drawn for one sample until one follows all rules.
MOST_TRIES = 12
#: Rows of all drafts of one sample together, and of a program of which nobody says how many it has.
_MOST_ROWS_DRAWN, _USUAL_ROWS = 1_800, 1_000
#: Bits (base 2) by which totals of profiles are moved before they are used again.
_JITTER_BITS = 0.5
_DEFAULT = "default.npz"


@dataclass(frozen=True)
class Generator:
    """Makes workloads: `profiles` are totals that real ones have, for what nobody asks for, and `memory` what is
    remembered of the programs that have them. Without a memory the row model alone writes."""

    model: RowModel
    vocabulary: Vocabulary
    profiles: tuple[Conditions, ...]
    memory: Memory | None = None

    @classmethod
    def load(cls, source: str | Path | bytes | None = None) -> Generator:
        """The generator of a file that `flint learn` wrote; None: the one that comes with Flint.

        Raises FlintError FL959 for another file.
        """
        return _default() if source is None else cls(*read(source))

    def to_bytes(self) -> bytes:
        """The file."""
        return to_bytes(self.model, self.vocabulary, self.profiles, self.memory)

    def sample(
        self,
        asked: Conditions | None = None,
        seed: int = 0,
        *,
        temperature: float = 1.0,
        drafts: int | None = None,
    ) -> Workload:
        """One workload: valid by all strict rules, equal for equal arguments.

        Of several `drafts` (None: as many as some thousand rows allow) it is the one whose totals are nearest to
        those that are asked for. What is not asked for is as in one of the profiles, moved a little. Raises
        FlintError FL956 where `MOST_TRIES` programs in a row did not follow the rules or came to no end.
        """
        random = np.random.default_rng([seed, 0x5EED])
        complete = self.completed(asked or Conditions(), random)
        pen = Pen(self.model, self.vocabulary, random, temperature)
        wanted = drafts or max(_MOST_ROWS_DRAWN // (complete.rows or _USUAL_ROWS), 1)
        found: list[tuple[float, Workload]] = []
        for tries in range(MOST_TRIES):
            is_alone = self.memory is None or (tries > MOST_TRIES // 2 and not found)
            workload = _drawn(pen, complete) if is_alone else self._redrawn(pen, complete)
            if workload is not None:
                found.append((_missed(workload, complete), workload))
            if len(found) >= wanted or (found and tries >= 2 * wanted):
                break
        if found:
            return min(found, key=lambda one: one[0])[1]
        raise FlintError(
            "FL956",
            f"none of {MOST_TRIES} programs that were drawn came to an end within the rules",
            help="ask for fewer rows or another mesh, or learn from more captures",
        )

    def _redrawn(self, pen: Pen, asked: Conditions) -> Workload | None:
        """A workload after what is remembered; None without a memory, and where it broke a rule."""
        if self.memory is None:
            return None
        weights = weights_of(self.profiles, asked)
        found = exemplar(self.memory, weights, asked, pen.random)
        steps = redraw(pen, found, asked) if found is not None else None
        return _checked(pruned(steps)) if steps is not None else None

    def completed(self, asked: Conditions, random: np.random.Generator) -> Conditions:
        """The conditions with what is missing taken from a profile that is near in what is given."""
        near = sorted(range(len(self.profiles)), key=lambda i: _far(self.profiles[i], asked))
        few = max(len(near) // 10, 1)
        profile = self.profiles[near[int(random.integers(few))]] if near else Conditions()
        moved = _moved(profile, random)
        given = {name: value for name, value in vars(asked).items() if value}
        if "mesh" in given and given["mesh"] != moved.mesh:
            moved = replace(moved, axis_bytes={})
        # Shares and bytes that belong to other numbers are left out where those are given.
        return replace(moved, **given)


def _drawn(pen: Pen, asked: Conditions) -> Workload | None:
    """A workload, or None for one that breaks a rule."""
    steps = draw(pen, asked)
    if steps is None:
        return None
    return _checked(pruned(fitted(steps, asked))) or _checked(pruned(steps))


def _checked(steps: Steps) -> Workload | None:
    workload = Workload.single(write_program(steps), {"producer": "flint", "name": "synthetic"})
    try:
        workload.verify()
    except AssertionError:
        return None
    return None if broken_rules(workload) else workload


def _missed(workload: Workload, asked: Conditions) -> float:
    """Bits by which a workload misses its totals: rows and layers count most, then FLOPs and bytes."""
    program = workload.programs[0]
    found = 3 * _bits(len(program), asked.rows) + 0.5 * _bits(flops_of(program), asked.flops)
    found += _bits(depth_of(program), asked.depth)
    sent = comm_bytes_by_label(program)
    if asked.axis_bytes:
        labels = sorted({*sent, *asked.axis_bytes})  # sums in one order, in every process
        found += sum(_bits(sent.get(k, 0), asked.axis_bytes.get(k)) for k in labels) / len(labels)
    shares = phase_shares(program)
    for phase in {*shares, *asked.phases} if asked.phases else ():
        found += 2 * abs(shares.get(phase, 0.0) - asked.phases.get(phase, 0.0))
    return found


def _bits(has: float, asked: float | None) -> float:
    """Bits between two numbers, at most ten; 0 where nothing is asked for."""
    return min(abs(math.log2((has + 1) / (asked + 1))), 10.0) if asked is not None else 0.0


def _far(profile: Conditions, asked: Conditions) -> float:
    """Bits between totals that both have."""
    found = 0.0
    for name in ("flops", "depth", "memory_bytes", "rows"):
        one, other = getattr(profile, name), getattr(asked, name)
        if one and other:
            found += abs(math.log2(one / other))
    if asked.mesh is not None and profile.mesh is not None:
        found += abs(math.log2(profile.mesh.size / asked.mesh.size))
        found += 4 * abs(len(profile.mesh.sizes) - len(asked.mesh.sizes))
    for phase, share in asked.phases.items():
        found += 4 * abs(share - profile.phases.get(phase, 0.0))
    return found


def _moved(profile: Conditions, random: np.random.Generator) -> Conditions:
    """Totals moved at random by up to half a bit each; depth and mesh stay."""

    def near(value: float | None) -> float | None:
        return value and float(value * 2 ** random.uniform(-_JITTER_BITS, _JITTER_BITS))

    rows = near(profile.rows)
    return replace(
        profile,
        flops=near(profile.flops),
        axis_bytes={k: near(v) or 0.0 for k, v in profile.axis_bytes.items()},
        memory_bytes=near(profile.memory_bytes),
        rows=max(round(rows), 8) if rows else None,
    )


@lru_cache(maxsize=1)
def _default() -> Generator:
    return Generator.load((files("flint.tools.share.synth") / _DEFAULT).read_bytes())
