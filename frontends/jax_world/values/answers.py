"""What a program is told that reads a value of an array without data.

One policy, that of recorded PyTorch programs (docs/torch-distributed.md): what follows from the
program is known, numbers are finite, a floating-point number is 1.0, and everything else is asked
for with FL233 or given by a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.frontends.jax_world.values.known import Known
from flint.frontends.jax_world.values.places import asking_place

#: Larger arrays are not handed out: whoever reads one writes a checkpoint, or calculates.
MOST_READ = 2**20
#: A line that is told a made-up number so often is in a loop that waits for another one.
MOST_ANSWERS = 10_000
_PLACE = re.compile(r"\.py:\d+$")
#: What stands for a floating-point number that is not known: a loss, a norm.
FLOAT = 1.0


class Answers:
    """Answers for one run of a program. `hints` map `FILE.py:LINE` to a number or a list.

    Raises FlintError FL237 for a hint of another form.
    """

    def __init__(self, hints: Mapping[str, Any]) -> None:
        for key in hints:
            if not _PLACE.search(key):
                raise FlintError(
                    "FL237",
                    f"hint '{key}' is not a line of the program",
                    help='name the line that reads the value: --hint "train.py:88=3"',
                )
        self._hints = dict(hints)
        self._told: dict[str, int] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was made up, once for each line."""
        return tuple(self._told)

    def say(self, sentence: str) -> None:
        """A warning for the user, once."""
        self._told.setdefault(sentence, 1)

    def read(self, shape: tuple[int, ...], dtype: Any, known: Known | None) -> NDArray[Any]:
        """The elements of an array, read by the program.

        Raises FlintError FL233 where nothing sensible can be said, FL237 for a hint that does not
        fit, FL239 where a line asks forever.
        """
        if known is not None and not known.made_up:
            return known.data
        place, library = asking_place()
        given = self._hint(place, library)
        if given is not None:
            return self._given(given, shape, dtype, place or library)
        size = int(np.prod(shape))
        what = _described(shape, dtype)
        if known is not None:
            self._tell(place or library, what, str(known.data.flat[0]))
            return known.data
        if not _is_float(dtype) or size > MOST_READ:
            raise _unknown(what, place, library, size, dtype)
        self._tell(place or library, what, str(FLOAT))
        return np.broadcast_to(np.asarray(FLOAT).astype(dtype), shape)

    def printed(self, dtype: Any, known: Known | None) -> Any:
        """A number that is only shown, None where there is none: nothing depends on it."""
        if known is not None:
            return known.data[()]
        return FLOAT if _is_float(dtype) else None

    def _hint(self, place: str, library: str) -> Any:
        for key, given in self._hints.items():
            if key == place or (library and (library == key or library.endswith("/" + key))):
                return given
        return None

    def _given(self, given: Any, shape: tuple[int, ...], dtype: Any, place: str) -> NDArray[Any]:
        try:
            return np.broadcast_to(np.asarray(given).astype(dtype), shape)
        except (ValueError, TypeError) as error:
            raise FlintError(
                "FL237",
                f"the hint {given!r} does not fit {_described(shape, dtype)}, which is read there",
                place=place,
                help="give a number, or a list as long as the array",
            ) from error

    def _tell(self, place: str, what: str, answer: str) -> None:
        line = f"{place or '?'}: reads {what}, which depends on data: {answer}"
        self._told[line] = self._told.get(line, 0) + 1
        if self._told[line] > MOST_ANSWERS:
            raise FlintError(
                "FL239",
                f"{what} is read for the {MOST_ANSWERS:,}th time, and is always {answer}: the "
                "loop around it never ends",
                place=place or None,
                help=f'give the value that ends it: --hint "{place}=0"',
            )


def _is_float(dtype: Any) -> bool:
    return not (
        dtype == np.bool_
        or np.issubdtype(dtype, np.integer)
        or np.issubdtype(dtype, np.complexfloating)
    )


def _described(shape: tuple[int, ...], dtype: Any) -> str:
    if shape:
        return f"an array {dtype}[{','.join(map(str, shape))}]"
    return {"bool": "a condition"}.get(str(dtype), f"a number ({dtype})")


def _unknown(what: str, place: str, library: str, size: int, dtype: Any) -> FlintError:
    key = library or place  # the line that asks, where a line of the user's calls a library
    help_ = f'give the value: --hint "{key}={"true" if dtype == np.bool_ else 1}"'
    if size > MOST_READ:
        help_ = "disable copies of whole arrays with the program's options"
    return FlintError(
        "FL233",
        f"{what} depends on data, which a capture does not have",
        place="  ".join(p for p in (place, library) if p) or None,
        help=help_,
    )
