"""How many tokens a step has: by the user's expression, else from the step's arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.steps.entry import AnyStep
from flint.steps.pipeline import Pipeline
from flint.steps.pools import Disaggregated
from flint.steps.step import Step, TorchStep
from flint.tools.explore.space.expression import CannotTell, names_in, parse_expression
from flint.tools.explore.space.names import RESULTS, Scope, as_name

if TYPE_CHECKING:
    from flint.tools.explore.space.expression import Value

#: Types that indices of tokens have. Smaller integers are caches and weights that were quantized.
_INDICES = ("int32", "int64", "uint32", "uint64")


@dataclass(frozen=True)
class Tokens:
    """Tokens of a step on all devices, 0 if not known, and what says so."""

    count: int = 0
    said_by: str = ""


def tokens_by(expression: str, mesh: str, options: Mapping[str, str]) -> Tokens:
    """What a user's expression over options and mesh axes gives.

    Raises FlintError FL861 for one that cannot be read, or is not a positive whole number.
    """
    parsed = parse_expression(expression, "--tokens")
    axes: Mapping[str, Value] = Mesh.parse(mesh).shape | {"devices": Mesh.parse(mesh).size}
    options = {as_name(name): value for name, value in options.items()}
    values: dict[str, Value] = {**options, **axes}
    for shared in options.keys() & axes.keys():  # stands for neither
        del values[shared]
    values |= {f"set.{name}": value for name, value in options.items()}
    values |= {f"mesh.{name}": value for name, value in axes.items()}
    try:
        found = parsed.value(values)
    except CannotTell as error:
        raise FlintError("FL861", f"--tokens '{expression}': {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 1 or found % 1:
        raise FlintError(
            "FL861",
            f"--tokens '{expression}' gives {found}, not a number of tokens",
            help="write the product of batch and sequence: --tokens 'batch * seq'",
        )
    return Tokens(int(found), expression)


def tokens_of(step: AnyStep) -> Tokens:
    """The product of the dimensions of the largest argument of indices that has two or more."""
    shapes = [(math.prod(shape), name) for name, shape in _integers(step)]
    if not shapes:
        return Tokens()
    count, name = max(shapes, key=lambda s: s[0])
    return Tokens(count, name)


def _integers(step: AnyStep) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of arguments whose elements may be indices of tokens."""
    import jax

    given = _arguments(step)
    for path, leaf in jax.tree_util.tree_flatten_with_path(given)[0]:
        shape = tuple(getattr(leaf, "shape", ()))
        dtype = str(getattr(leaf, "dtype", "")).removeprefix("torch.")
        if len(shape) >= 2 and dtype in _INDICES:
            yield "".join(map(str, path)), shape


def _arguments(step: AnyStep) -> Any:
    if isinstance(step, Pipeline):
        inner = step.model if isinstance(step.model, TorchStep) else None
        return {"inputs": inner.args if inner else step.inputs}
    if isinstance(step, Disaggregated):
        return _arguments(step.decode)
    if isinstance(step, Step | TorchStep):
        return {"args": tuple(step.args), "kwargs": dict(step.kwargs)}
    return ()


def require_tokens(text: str, scope: Scope) -> None:
    """Raise FlintError FL861 unless `text` is empty or an expression over names that points have."""
    if not text:
        return
    known = [n for n in scope.known if not n.startswith("result.")]
    of_points = [n for n in known if n not in RESULTS]
    of_points += [n for n in RESULTS if f"set.{n}" in known]
    for name in names_in(parse_expression(text, "--tokens")):
        if name not in of_points:
            plain = [n for n in of_points if "." not in n]
            raise FlintError(
                "FL861",
                f"--tokens '{text}': unknown name '{name}'{nearest(name, of_points)}",
                help=f"names are {', '.join(plain)}",
            )
