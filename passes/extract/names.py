"""Where rows come from: scope, phase, source line and parameter names of MLIR values."""

from __future__ import annotations

from typing import Any, NamedTuple

from flint.ir.program import Phase
from flint.passes.mlir import decode_location, split_name_stack


class Origin(NamedTuple):
    """Source scope, `file:line` and phase tag of an operation."""

    scope: str = ""
    location: str = ""
    phase: Phase = Phase.UNKNOWN


class Origins:
    """Decodes locations once each. `inside` is the origin of the call that is being walked."""

    def __init__(self) -> None:
        self._known: dict[Any, Origin] = {}
        self.inside = Origin()

    def of(self, location: Any) -> Origin:
        """Origin of one `ir.Location`."""
        found = self._known.get(location)
        if found is None:
            name, place = decode_location(location)
            scope, phase = split_name_stack(name)
            found = self._known[location] = Origin(scope, place, phase)
        outer, phase = self.inside, found.phase
        if phase == Phase.UNKNOWN:
            phase = outer.phase
        return Origin(_joined(outer.scope, found.scope), found.location, phase)


def _joined(outer: str, inner: str) -> str:
    """A scope inside another. Bodies of `shard_map` may say the whole of theirs already."""
    if not outer or inner == outer or inner.startswith(f"{outer}/"):
        return inner
    return f"{outer}/{inner}" if inner else outer


def parameter_name(argument: Any) -> str:
    """The pytree path that JAX gave a function argument, or ""."""
    name, _ = decode_location(argument.location)
    return name
