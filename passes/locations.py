"""What the locations of MLIR operations say: a name, a place in the source, scope and phase."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from flint.ir.program import Phase

#: The names in a location, the primitive's last, and its place: "" or None where it says none.
_Said = tuple[tuple[str, ...], str | None]


class Locations:
    """Reads `ir.Location`s of one context, each distinct one and each frame in it once.

    Objects of two equal locations have two hashes; their attributes are unique in a context.
    """

    def __init__(self) -> None:
        self._known: dict[Any, _Said] = {}

    def decode(self, location: Any) -> tuple[str, str]:
        """Return (name, "file.py:line") of a location; either may be empty.

        The name is JAX's name stack with the primitive at its end. The file is the innermost frame:
        of `callsite(A at B)` A is asked before B. Flint's own call of JAX is no place: constants
        that JAX hoists carry it. In PyTorch programs the name stack says phase and place itself
        (see `split_name_stack`); it is then read from the outermost call to the primitive.
        """
        found, place = self._said(location)
        names = [n for n in found if n]
        if not any(map(_TORCH_STACK.search, names)):
            return (names[-1] if names else ""), place or ""
        name = "/".join(names)
        return name, written_place(name) or ""

    def _said(self, location: Any) -> _Said:
        key = location.attr
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(location)
        return found

    def _read(self, location: Any) -> _Said:
        from jaxlib.mlir import ir

        if isinstance(location, ir.NameLoc):
            names, place = self._said(location.child_loc)
            return (*names, location.name_str), place
        if isinstance(location, ir.CallSiteLoc):
            outer_names, outer = self._said(location.caller)
            names, inner = self._said(location.callee)
            return outer_names + names, outer if inner is None else inner
        if isinstance(location, ir.FusedLoc):
            return _first_of([self._said(part) for part in location.locations])
        if isinstance(location, ir.FileLineColLoc):
            if is_tracer(location.filename):
                return (), ""
            return (), f"{file_name(location.filename)}:{location.start_line}"
        return (), None


def decode_location(location: Any) -> tuple[str, str]:
    """`Locations.decode` of one location that is read by itself."""
    return Locations().decode(location)


def _first_of(parts: list[_Said]) -> _Said:
    """Of what was fused together, the first names and the first place that are there."""
    names = next((names for names, _ in parts if names), ())
    return names, next((place for _, place in parts if place is not None), None)


#: The phases that begin the part of a name stack that a PyTorch program wrote.
_TORCH_STACK = re.compile(r"(?:^|/)@(?:forward|backward|optimizer)(?=/|$)")
_AT = "~&"
#: A place that a frontend wrote into the name stack: a part like `@model.py:41`.
_PLACE = re.compile(r"(?:^|/)@([^/@]+:\d+)(?=/|$)")

#: The files in which Flint calls JAX.
TRACERS = ("/frontends/jax_step/program.py", "/frontends/torch_export.py")


def is_tracer(location_file: Any) -> bool:
    """Whether a file is one of TRACERS. Their last parts alone may name files of the user's."""
    return _path(location_file).replace("\\", "/").endswith(TRACERS)


def file_name(location_file: Any) -> str:
    """The last part of a file name, so that no output holds a path of one machine."""
    return _path(location_file).rsplit("/", 1)[-1]


def _path(location_file: Any) -> str:
    return location_file if isinstance(location_file, str) else str(location_file).strip('"')


_WRAPPERS = re.compile(r"\b(?:jit|pjit|jvp|transpose|vmap|checkpoint|remat|custom_vjp_call)\(")
_NOISE = frozenset(
    [
        "while",
        "body",
        "cond",
        "closed_call",
        "checkpoint",
        "rematted_computation",
        "custom_jvp_call",
        "custom_vjp_call",
        "eval_jaxpr",
        "remat2",
        "core_call",
        "scan",
        "pjit",
        "xla_call",
        "shard_map",
    ]
)


def kept_by_xla(name: str) -> str:
    """A name as XLA has to get it: it cuts names at the sign that those of PyTorch programs have."""
    return name.replace("@", _AT)


def as_written(name: str) -> str:
    """A name that `kept_by_xla` made, as it was."""
    return name.replace(_AT, "@")


def written_place(name: str) -> str | None:
    """The `file.py:line` that the name stack of a PyTorch program says itself, or ""; None of others."""
    if not _TORCH_STACK.search(name):
        return None
    written = _PLACE.findall(name)
    return str(written[-1]) if written else ""


def split_name_stack(name: str) -> tuple[str, Phase]:
    """Turn JAX's name stack into a source scope and a phase tag.

    `jit(step)/transpose(jvp(layers))/while/body/attention/dot_general` gives
    `("layers/attention", Phase.BACKWARD)`. Names that JAX adds itself (transformations, loop
    bodies, the primitive at the end) are dropped; what `jax.named_scope` and jitted functions
    added stays. The phase is FORWARD under `jvp`, BACKWARD under `transpose`, REMAT under
    `rematted_computation`, and UNKNOWN outside any of them. Of a PyTorch program, what
    `@forward`, `@backward` or `@optimizer` begins and a place (`@model.py:41`) ends is the scope.
    """
    if _TORCH_STACK.search(name):
        return _split_torch_stack(name)
    if "rematted_computation" in name:
        phase = Phase.REMAT
    elif "transpose(" in name:
        phase = Phase.BACKWARD
    elif "jvp(" in name:
        phase = Phase.FORWARD
    else:
        phase = Phase.UNKNOWN
    parts = name.split("/")[:-1]
    if parts and parts[0].startswith("jit("):
        parts = parts[1:]
    kept: list[str] = []
    for part in parts:
        text = _WRAPPERS.sub("", part).strip("()")
        if text and text not in _NOISE and "->" not in text and "," not in text:
            kept.append(text)
    return "/".join(kept), phase


_TORCH_PHASES = {
    "@forward": Phase.FORWARD,
    "@backward": Phase.BACKWARD,
    "@optimizer": Phase.OPTIMIZER,
}


def _split_torch_stack(name: str) -> tuple[str, Phase]:
    phase, inside = Phase.UNKNOWN, False
    kept: list[str] = []
    for part in name.split("/")[:-1]:
        if part in _TORCH_PHASES:
            phase, inside = _TORCH_PHASES[part], True
        elif part == "@":
            inside = False
        elif inside and not part.startswith("@"):
            kept.append(part)
        else:
            inside = False
    return "/".join(kept), phase


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
