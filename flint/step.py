"""What a model file hands to Flint: `Step`, and `entry` to mark the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flint_entry__"


@dataclass(frozen=True)
class Step:
    """A function and the abstract arguments to trace it with.

    `args` and `kwargs` are pytrees of `jax.ShapeDtypeStruct` (arrays do too: only their shape and
    dtype are used). Shardings come with the arguments or as `in_shardings`, a pytree prefix of
    `args` of `NamedSharding` or `PartitionSpec`. `trip_counts` names loops whose bound is not
    static: `{"decode_loop": 128}`.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_shardings: Any = None
    out_shardings: Any = None
    donate_argnums: Sequence[int] = ()
    static_argnums: Sequence[int] = ()
    trip_counts: Mapping[str, int] = field(default_factory=dict)
    platform: str = "cuda"
    name: str = ""


@dataclass(frozen=True)
class EntryMark:
    """What `entry` leaves on a function: the names of the mesh axes that it expects."""

    axes: tuple[str, ...]


def entry(*, axes: Sequence[str] = ()) -> Callable[[F], F]:
    """Mark a function of a mesh that returns a `Step`, so that `flint capture FILE` finds it.

    The function receives a `jax.sharding.AbstractMesh` (its axes named `axes`) and the options
    given with `--set NAME=VALUE` as keyword arguments.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, EntryMark(tuple(axes)))
        return function

    return mark


def entry_mark(function: object) -> EntryMark | None:
    """The mark that `entry` left on `function`, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, EntryMark) else None
