"""Where rows come from: scope, phase, source line and parameter names of MLIR values."""

from __future__ import annotations

from typing import Any, NamedTuple

from flint.ir.program import Phase
from flint.passes.locations import Locations, split_name_stack


class Origin(NamedTuple):
    """Source scope, `file:line` and phase tag of an operation."""

    scope: str = ""
    location: str = ""
    phase: Phase = Phase.UNKNOWN


#: Where nothing says where a row comes from.
NOWHERE = Origin()


class Origins:
    """Decodes locations once each. `inside` is the origin of the call that is being walked."""

    def __init__(self) -> None:
        self.locations = Locations()
        self._known: dict[Any, Origin] = {}
        self.inside = NOWHERE

    def of(self, location: Any) -> Origin:
        """Origin of one `ir.Location`."""
        key = location.attr
        found = self._known.get(key)
        if found is None:
            name, place = self.locations.decode(location)
            scope, phase = split_name_stack(name)
            found = self._known[key] = Origin(scope, place, phase)
        outer, phase = self.inside, found.phase
        if outer is NOWHERE:
            return found
        if phase == Phase.UNKNOWN:
            phase = outer.phase
        return Origin(_joined(outer.scope, found.scope), found.location, phase)

    def name_of(self, argument: Any) -> str:
        """The pytree path that JAX gave a function argument, or ""."""
        return self.locations.decode(argument.location)[0]


def _joined(outer: str, inner: str) -> str:
    """A scope inside another. Bodies of `shard_map` may say the whole of theirs already."""
    if not outer or inner == outer or inner.startswith(f"{outer}/"):
        return inner
    return f"{outer}/{inner}" if inner else outer
