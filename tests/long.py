"""Cases of which one or two run in the test command of the README, and all in `.ci/run`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_but(quick: Collection[object], cases: Iterable[Any]) -> list[Any]:
    """The cases for `parametrize`: those that are not among `quick` are marked `long`.

    A case that is a tuple has a value for each name of the parameters.
    """
    found = list(cases)
    assert all(case in found for case in quick), f"{quick} are not all among the cases"
    values = [case if isinstance(case, tuple) else (case,) for case in found]
    return [
        pytest.param(*value, marks=() if case in quick else pytest.mark.long)
        for case, value in zip(found, values, strict=True)
    ]
