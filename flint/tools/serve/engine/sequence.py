"""One request in an engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in an engine.

    While it decodes, its cache holds `offset` + tick tokens, where the tick counts the engine's decode
    passes: all that decode advance together, and nothing of them is touched in a pass.
    """

    request: int
    input: int
    output: int  #: tokens that this engine generates
    arrived: tuple[float, int]  #: nanoseconds, and the number of the arrival
    priority: int = 0
    generated: int = 0
    computed: int = 0  #: tokens of `prompt` that are in the cache
    blocks: int = 0  #: without a hash, until it decodes
    hashes: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    offset: int = 0
    end_tick: int = -1
    last_ns: float = 0.0  #: when its last token came; of those that decode the engine knows

    @property
    def prompt(self) -> int:
        """Tokens to compute before it decodes: after a preemption the answer so far as well."""
        return self.input + self.generated
