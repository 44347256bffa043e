"""What the program was told of values that depend on data: hints, and what a policy made up."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_private import OpOverload

_PLACE = re.compile(r"\.py:\d+$")
#: So often a line may be told the same made-up value; texts are generated token by token.
MOST_REPEATS = 10_000


@dataclass(frozen=True)
class Surroundings:
    """What `Values` needs to know from whoever runs the program.

    `place` and `module` say where the program is (`train.py:88`, `layers.0.moe`).
    `without_modes` is a context in which operators compute with real tensors.
    `group_position` gives rank and size of a process group, from its name or itself.
    `call` runs an operator on fake tensors. `on_host` says which tensors are the host's.
    `sent` gives what the member `root` of a process group broadcasts, from what this rank has: an
    operator's group, the member's place in it, and a real tensor or None.
    """

    place: Callable[[], str]
    module: Callable[[], str]
    without_modes: Callable[[], AbstractContextManager[object]]
    group_position: Callable[[Any], tuple[int, int]]
    call: Callable[[OpOverload, Sequence[Any], Mapping[str, Any]], object] = (
        lambda f, args, kwargs: f(*args, **kwargs)
    )
    on_host: Callable[[torch.Tensor], bool] = lambda tensor: False
    sent: Callable[[Any, int, torch.Tensor | None], torch.Tensor | None] = lambda group, root, own: (
        own
    )


class Hints:
    """Looks hints up, and notes every value that was made up.

    `hints` maps globs over module paths, or `file.py:line`, to values.
    """

    def __init__(self, hints: Mapping[str, Any], around: Surroundings) -> None:
        self._hints = dict(hints)
        self._used: set[str] = set()
        self._around = around
        self._told: dict[str, dict[str, None]] = {}
        #: Lines at which the policy or a hint said how data falls into parts: tokens of experts.
        self.shares: dict[str, None] = {}
        self._repeats: dict[tuple[str, str, str], int] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each place where a value was made up, in the order of the program."""
        unused = (f"hint '{key}' was never used" for key in self._hints if key not in self._used)
        told = (f"{what}: {_some(list(answers))}" for what, answers in self._told.items())
        return (*told, *unused)

    def share(self) -> None:
        """Note that this line was told how data falls into parts."""
        self.shares[self._around.place() or self._around.module() or "?"] = None

    def tell(self, what: str, answer: str) -> None:
        """Note what was made up for the program, and where."""
        place = self._around.place() or self._around.module() or "?"
        told = f"{place}: {what}"
        self._told.setdefault(told, {})[answer] = None
        self.guard(place, what, answer)

    def guard(self, place: str, what: str, answer: str) -> None:
        """Raise FlintError FL239 at a line that is told the same again and again."""
        key = (place, what, answer)
        self._repeats[key] = self._repeats.get(key, 0) + 1
        if self._repeats[key] == MOST_REPEATS:
            raise FlintError(
                "FL239",
                f"the loop at {place} does not end: {what} was answered {MOST_REPEATS:,} times with {answer}",
                place=place,
                help=f'give the value that ends it: --hint "{place}=..."',
            )

    def hint(self, fits: Callable[[Any], bool], places: bool = True, modules: bool = True) -> Any:
        """The first hint for this line or module for which `fits` is true, or None."""
        place, module = self._around.place(), self._around.module()
        for key, given in self._hints.items():
            by_place = _PLACE.search(key) is not None
            if by_place and not (places and _is_place(place, key)):
                continue
            if not by_place and not (modules and _is_inside(module, key)):
                continue
            if fits(given):
                self._used.add(key)
                return given
            if by_place:
                raise FlintError(
                    "FL237",
                    f"hint '{key}' is {given!r}, which does not fit the value read there",
                    place=place,
                    help="give a number for .item(), nonzero and masks, and a list of the "
                    "tensor's length for .tolist() and counts",
                )
        return None

    def unknown(self, what: str, example: str, entries: int = 1) -> FlintError:
        """FL233: neither the policy nor a hint gives a value; `example` is one for a hint."""
        place, module = self._around.place(), self._around.module()
        key = place or module
        return FlintError(
            "FL233",
            f"{what} depends on data, which a capture does not have",
            place=f"{place}  {module}".strip() or None,
            help=f"give {'the value' if entries == 1 else f'all {entries} values'}: "
            f'--hint "{key}={example}", or hints={{"{key}": {example}}}',
        )


def _is_place(place: str, key: str) -> bool:
    return place == key or place.endswith("/" + key) or key.endswith("/" + place)


def _is_inside(module: str, glob: str) -> bool:
    """Whether the glob matches the module or one that holds it."""
    parts = module.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:n]), glob) for n in range(1, len(parts) + 1))


def _some(answers: list[str]) -> str:
    """The first three of the answers that one line of the program got."""
    more = [f"and {len(answers) - 3} more"] if len(answers) > 3 else []
    return " ".join([", ".join(answers[:3]), *more])
