"""What dataclasses, typed dictionaries and models become in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from flint.cluster.models import Quantity
from flint.io.documents import (
    IfAny,
    Later,
    Millionths,
    Presence,
    Thousandths,
    Unpublished,
    as_json,
    as_object,
    published,
)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    share: Millionths
    time_ns: Thousandths | None = None


@dataclass(frozen=True)
class Whole:
    exact_ns: float
    colour: Colour
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    program: Unpublished[object] = None
    host: IfAny[Part | None] = None
    donated: Later[bool | None] = None


PART = Part(1 / 3, 2 / 3)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Part(0.5), {"share": 0.5, "time_ns": None}),
        (PART, {"share": 0.333333, "time_ns": 0.667}),
        (
            Whole(1 / 3, Colour.RED, program=object()),
            {"exact_ns": 1 / 3, "colour": "red", "parts": [], "by_name": {}, "donated": None},
        ),
        (
            Whole(1.0, Colour.RED, (PART,), MappingProxyType({"a": PART}), host=PART, donated=True),
            {
                "exact_ns": 1.0,
                "colour": "red",
                "parts": [{"share": 0.333333, "time_ns": 0.667}],
                "by_name": {"a": {"share": 0.333333, "time_ns": 0.667}},
                "host": {"share": 0.333333, "time_ns": 0.667},
                "donated": True,
            },
        ),
        (
            {"rows": [(PART, 1)], "of": Quantity(value=2.0, kind="measured", source="a test")},
            {
                "rows": [[{"share": 0.333333, "time_ns": 0.667}, 1]],
                "of": {"value": 2.0, "kind": "measured", "source": "a test"},
            },
        ),
    ],
)
def test_what_values_become(value: Any, said: object) -> None:
    assert as_object(value) == said
    assert [*as_object(value)] == [*said]  # type: ignore[misc]
    assert json.loads(json.dumps(as_json(value))) == said


def test_what_is_published_of_a_class() -> None:
    found = {f.name: f.presence for f in published(Whole)}
    assert "program" not in found
    assert (found["host"], found["donated"]) == (Presence.IF_ANY, Presence.LATER)
    assert [(f.name, f.digits) for f in published(Part)] == [("share", 6), ("time_ns", 3)]
