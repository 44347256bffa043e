"""Choices that options of an entry declare."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import pytest

from flint.errors import FlintError
from flint.steps.choices import choices_of, option_choices
from flint.steps.options import options_of

if TYPE_CHECKING:
    from decimal import Decimal


class Kind(Enum):
    FLASH = "flash"
    PLAIN = 2


@pytest.mark.parametrize(
    ("annotation", "texts", "is_closed"),
    [
        (Literal["none", "full"], ("none", "full"), True),
        (Literal[True, False], ("true", "false"), True),
        (Literal["a"] | None, ("a", "None"), True),
        (Optional[Literal[1, 2]], ("1", "2", "None"), True),  # noqa: UP045
        (Kind, ("flash", "PLAIN"), True),
        (Annotated[int, range(1, 9)], ("1", "2", "4", "8"), False),
        (Annotated[int, range(3, 20)], ("3", "6", "12"), False),
        (Annotated[int, range(4, 17, 4)], ("4", "8", "12", "16"), False),
        (Annotated[int, range(3)], ("0", "1", "2"), False),
        (Annotated[str, ("x", "y", "x")], ("x", "y"), False),
        (Annotated[Literal["a", "b"], "a note"], ("a", "b"), True),
        (Annotated[int, range(1, 3)] | None, ("1", "2", "None"), False),
    ],
)
def test_annotations_that_list_choices(annotation, texts, is_closed):
    found = choices_of(annotation)
    assert found is not None
    assert (found.texts, found.is_closed) == (texts, is_closed)


@pytest.mark.parametrize("annotation", [int, bool, int | None, Literal["a"] | int, "text", None])
def test_annotations_that_list_none(annotation):
    assert choices_of(annotation) is None


def test_a_range_too_long_to_look_at_is_refused():
    with pytest.raises(FlintError, match="20,001 numbers") as caught:
        choices_of(Annotated[int, range(20_001)])
    assert caught.value.code == "FL216"


def entry(
    mesh,
    *,
    remat: "Literal['none', 'full']" = "none",
    chunks: "Annotated[int, range(1, 9)]" = 1,
    reshard: Literal[True, False] = True,
    kind: Kind = Kind.FLASH,
    rate: "Decimal | None" = None,
):
    return remat, chunks, reshard, kind, rate


def test_annotations_as_text_are_read_and_unreadable_ones_are_no_choice():
    found = option_choices(entry)
    assert {n: c.texts for n, c in found.items()} == {
        "remat": ("none", "full"),
        "chunks": ("1", "2", "4", "8"),
        "reshard": ("true", "false"),
        "kind": ("flash", "PLAIN"),
    }


def test_settings_become_the_declared_values():
    settings = {"remat": "full", "chunks": "3", "reshard": "No", "kind": "plain", "rate": "0.5"}
    found = options_of(entry, settings, place="model.py:entry")
    assert found == {
        "remat": "full",
        "chunks": 3,
        "reshard": False,
        "kind": Kind.PLAIN,
        "rate": 0.5,
    }


def test_a_setting_that_is_no_choice_is_refused_with_the_choices():
    with pytest.raises(FlintError) as caught:
        options_of(entry, {"remat": "ful"}, place="model.py:entry")
    assert caught.value.code == "FL216"
    assert "did you mean 'full'?" in caught.value.message
    assert caught.value.help == "it is one of none, full"
