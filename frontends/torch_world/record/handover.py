"""What the process of one rank finds out and that of another rank needs to know."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Handover:
    """Facts by name (`stage 3`), pickled: the process that passes them on has no PyTorch.

    `known` comes from processes before, `found` is for those that follow, `assumed` is what this
    one took to be true without knowing.
    """

    known: Mapping[str, bytes] = field(default_factory=dict)
    found: dict[str, bytes] = field(default_factory=dict)
    assumed: dict[str, bytes] = field(default_factory=dict)

    def tell(self, name: str, fact: object) -> None:
        """Say what others may need. Facts that cannot be pickled stay here."""
        try:
            self.found[name] = pickle.dumps(fact)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
            self.found.pop(name, None)

    def ask(self, name: str) -> Any:
        """What is known under this name. Raises KeyError."""
        return pickle.loads(self.found[name] if name in self.found else self.known[name])

    def knows(self, name: str) -> bool:
        return name in self.found or name in self.known

    def assume(self, name: str, other: str) -> object:
        """Take the fact called `other` for that called `name`."""
        self.assumed[name] = self.found[other] if other in self.found else self.known[other]
        return pickle.loads(self.assumed[name])


def wrong_assumptions(assumed: Mapping[str, bytes], found: Mapping[str, bytes]) -> list[str]:
    """Names of what was found to be something else than what was assumed."""
    return [name for name, fact in sorted(assumed.items()) if found.get(name, fact) != fact]
