"""A surface as other simulators divide a pass: by layers' products, tokens, sequences and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Float64s
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.export.model import PRODUCTS, ModelNumbers, sizes_of_products
from flint.tools.serve.surface.lines import PassPart
from flint.tools.serve.surface.surface import Surface

#: The longest context of a table whose model does not limit it.
_LONGEST = 131_072
#: What a part takes beside the products that have names.
REST, COMMUNICATION = "rest", "communication"


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Nanoseconds of the parts of passes of one engine; they add up to `Surface.step_ns`.

    What follows tokens and sequences is as in passes with prompts: formats have it once. What passes
    that only decode take more or less is in their attention.
    """

    surface: Surface
    rules: EngineRules
    model: ModelNumbers
    longest: int  #: tokens of the longest sequence that the tables have rows for

    @property
    def devices(self) -> int:
        """Of one engine."""
        return self.surface.setting.workload.mesh.size

    @property
    def facts(self) -> dict[str, object]:
        """What the READMEs of all formats say."""
        hardware, host_us = self.surface.setting.cluster.name, self.rules.host_ns / 1e3
        found = {"name": self.model.name, "devices": self.devices, "hardware": hardware}
        return {**found, "rules": self.rules, "longest": self.longest, "host_us": host_us}

    def by_tokens(self, tokens: Sequence[int]) -> dict[str, Float64s]:
        """By product, `REST` and `COMMUNICATION`: what follows the new tokens of a pass."""
        sizes = np.array([(1, new, 0) for new in tokens], dtype=np.float64)
        return self._by_product(PassPart.TOKENS, sizes)

    def by_sequences(self, sequences: Sequence[int]) -> dict[str, Float64s]:
        """The same for what follows the number of sequences."""
        sizes = np.array([(count, 1, 0) for count in sequences], dtype=np.float64)
        found = self._by_product(PassPart.SEQUENCES, sizes)
        found[REST] += self.surface.sequence_ns * sizes[:, 0]
        return found

    def prompts(self, new: Sequence[int], context: Sequence[int]) -> Float64s:
        """Attention of one chunk (new, context)."""
        sizes = np.array([(1, n, c) for n in new for c in context], dtype=np.float64)
        found = self.surface.prefill.ns(PassPart.ATTENTION, sizes) * self.surface.late[1]
        return found.reshape(len(new), len(context))

    def decodes(self, sequences: Sequence[int], context: Sequence[int]) -> Float64s:
        """Attention of so many sequences that decode (sequences, context of each) with a prompt."""
        sizes = np.array([(s, 1, c) for s in sequences for c in context], dtype=np.float64)
        found = self.surface.decode.ns(PassPart.ATTENTION, sizes) * self.surface.late[1]
        return found.reshape(len(sequences), len(context))

    def decodes_alone(
        self, sequences: Sequence[int], context: Sequence[int], tokens: Sequence[int]
    ) -> Float64s:
        """The same without a prompt: what their pass takes beside `by_sequences`, and `by_tokens` of `tokens`."""
        parts = (*self.by_tokens(tokens).values(), *self.by_sequences(sequences).values())
        whole = [[self.surface.step_ns(s, s * c) for c in context] for s in sequences]
        found: Float64s = np.maximum(np.array(whole) - np.sum(parts, axis=0)[:, None], 0.0)
        return found

    def _by_product(self, part: PassPart, sizes: Float64s) -> dict[str, Float64s]:
        lines = self.surface.prefill
        mine = np.flatnonzero(lines.parts == part)
        names = self.model.products(self.devices)
        kernels = lines.kernels_ns(mine, sizes) * lines.counts[mine] * self.surface.late[1]
        found = {name: np.zeros(len(sizes)) for name in (*PRODUCTS, REST)}
        products = sizes_of_products(lines)
        for at, line in enumerate(mine.tolist()):
            found[names.get(products[line], REST)] += kernels[:, at]
        found[COMMUNICATION] = lines.communication_ns(part, sizes) * self.surface.late[1]
        return found


def longest_of(surface: Surface) -> int:
    """The longest sequence that tables have rows for, in tokens."""
    return min(surface.longest or _LONGEST, surface.cache_tokens)
