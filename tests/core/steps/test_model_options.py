"""`NAME=VALUE` on the command line."""

import pytest

from flint.errors import FlintError
from flint.steps.options import parse_hints, parse_settings, parse_trip_counts


def test_settings_split_at_the_first_equals():
    assert parse_settings(["a=1", " b =x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pairs", [["a"], ["=1"], ["a=1", "a=2"]])
def test_settings_that_are_not_pairs(pairs):
    with pytest.raises(FlintError) as caught:
        parse_settings(pairs)
    assert caught.value.code == "FL216"


def test_hints_are_literals():
    pairs = ["train.py:88=3", "layers.*.moe=[1, 2]", "train.py:9=true"]
    assert parse_hints(pairs) == {"train.py:88": 3, "layers.*.moe": [1, 2], "train.py:9": True}
    with pytest.raises(FlintError, match="--hint train.py:88 is not NAME=VALUE"):
        parse_hints(["train.py:88"])


def test_trip_counts_are_whole_numbers():
    assert parse_trip_counts(["decode=128", "outer=0"]) == {"decode": 128, "outer": 0}
    for bad in ("x", "-1", "1.5", ""):
        with pytest.raises(FlintError, match="is not a number"):
            parse_trip_counts([f"decode={bad}"])
