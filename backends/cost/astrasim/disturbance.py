"""Ranks that are late: computations of written traces that take longer or shorter than they say."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.backends.chakra.reading.reader import TraceNode
from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.simulator_files import whole_micros
from flint.errors import FlintError
from flint.text import number_in

#: Factors above this are typing errors.
_MOST = 1e6
_STRAGGLER = re.compile(r"\s*(?P<rank>\d{1,18})\s*:\s*(?P<factor>[^\s:]+)\s*")
_JITTER = re.compile(r"\s*(?P<percent>[^\s%]+)\s*%?\s*")


@dataclass(frozen=True)
class Disturbance:
    """Computations of some ranks take a factor longer, those of all ranks vary.

    `stragglers` are (rank, factor). Each computation of each rank takes between 1 - `jitter` and
    1 + `jitter` times as long, evenly, drawn from `seed`: equal for equal seeds, on any machine.
    Communication is left to the network.
    """

    stragglers: tuple[tuple[int, float], ...] = ()
    jitter: float = 0.0
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.stragglers) or self.jitter > 0

    def __str__(self) -> str:
        parts = [f"rank {rank} x{factor:g}" for rank, factor in self.stragglers]
        if self.jitter:
            parts.append(f"jitter {100 * self.jitter:g}% of seed {self.seed}")
        return ", ".join(parts)

    def touches(self, rank: int) -> bool:
        """Whether anything of a rank changes."""
        return self.jitter > 0 or any(late == rank for late, _ in self.stragglers)

    def factors(self, rank: int, count: int) -> list[float]:
        """For each of the `count` computations of a rank, by id, how much longer it takes."""
        whole = math.prod(factor for late, factor in self.stragglers if late == rank)
        draw = random.Random(f"{self.seed}:{rank}").random
        return [whole * (1 + self.jitter * (2 * draw() - 1)) for _ in range(count)]

    def require_ranks(self, world: int) -> None:
        """Raise FlintError FL727 for a rank that the traces do not have."""
        for rank, _ in self.stragglers:
            if rank >= world:
                raise FlintError(
                    "FL727",
                    f"--straggler names rank {rank}, but the traces have ranks 0 to {world - 1}",
                    help="name one of them",
                )

    def nodes(self, rank: int, nodes: Sequence[TraceNode]) -> list[TraceNode]:
        """The nodes of a rank (ascending ids) with their changed times.

        A duration stays in whole microseconds; what rounding takes from one is given to the next. The
        work of a computation, from which a roofline finds its time, changes alike.
        """
        computes = [i for i, n in enumerate(nodes) if n.type is NodeType.COMP]
        factors = self.factors(rank, len(computes))
        exact = [
            nodes[i].duration_micros * 1000 * f for i, f in zip(computes, factors, strict=True)
        ]
        micros = whole_micros(np.array(exact, dtype=np.float64)).tolist()
        found = list(nodes)
        for i, factor, duration in zip(computes, factors, micros, strict=True):
            found[i] = _with_times(nodes[i], factor, duration)
        return found


def _with_times(node: TraceNode, factor: float, micros: int) -> TraceNode:
    attributes = dict(node.attributes)
    for name in ("num_ops", "tensor_size"):
        kind, value = attributes.get(name, ("", None))
        if isinstance(value, int):
            attributes[name] = kind, _scaled(value, factor)
    return node._replace(duration_micros=micros, attributes=attributes)


def _scaled(value: int, factor: float) -> Any:
    return max(1, min(round(value * factor), (1 << 63) - 1)) if value > 0 else value


#: No rank is late.
UNDISTURBED = Disturbance()


def read_disturbance(stragglers: Sequence[str], jitter: str | None, seed: int) -> Disturbance:
    """What `RANK:FACTOR` and `PERCENT` say. Raises FlintError FL727 for what is neither."""
    late: dict[int, float] = {}
    for text in stragglers:
        match = _STRAGGLER.fullmatch(text)
        factor = number_in(match["factor"]) if match else math.nan
        if match is None or not 0 < factor <= _MOST:
            raise _refuse("--straggler", text, "give RANK:FACTOR, such as 5:1.1 for 10% longer")
        if int(match["rank"]) in late:
            raise _refuse("--straggler", text, f"rank {match['rank']} already has a factor")
        late[int(match["rank"])] = factor
    percent = 0.0
    if jitter is not None:
        match = _JITTER.fullmatch(jitter)
        percent = number_in(match["percent"]) if match else math.nan
        if not 0 <= percent < 100:
            raise _refuse("--jitter", jitter, "give a percentage from 0 to below 100, such as 5%")
    if seed < 0:
        raise _refuse("--seed", str(seed), "give a number from 0 on")
    return Disturbance(tuple(sorted(late.items())), percent / 100, seed)


def _refuse(option: str, text: str, help_: str) -> FlintError:
    return FlintError("FL727", f"{option} has no value '{text[:40]}'", help=help_)
