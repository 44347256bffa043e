"""Pictures of schedules, and those in docs/ are what Flint draws."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flint.errors import FlintError
from flint.passes.pipeline.schedule.pictures import picture, svg
from flint.passes.pipeline.schedule.schedules import SCHEDULES, orders
from flint.passes.pipeline.schedule.simulate import activations_held

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "pipeline-schedules.md"
#: name, ranks, microbatches and chunks of the drawing in docs/pictures
DRAWN = [(name, 4, 8, 2 if name == "interleaved-1f1b" else 1) for name in SCHEDULES]


def test_picture_by_hand():
    assert picture("1f1b", 2, 2) == (
        "rank 0 | 0 1 . . b0  . b1\n"
        "rank 1 | . 0 b0  1 b1  . .\n"
    )  # fmt: skip
    assert picture("zb-h1", 2, 1) == (
        "rank 0 | 0  .  .  b0 w0\n"
        "rank 1 | .  0  b0 w0 .\n"
    )  # fmt: skip


def test_chunks_are_told_apart():
    assert picture("forward", 1, 1, 3) == "rank 0 | 0   0'  0''\n"


def test_names_of_ranks_are_aligned():
    assert {line.index("|") for line in picture("forward", 11, 1).splitlines()} == {8}


def test_pictures_of_impossible_schedules_are_refused():
    for draw in (picture, svg):
        with pytest.raises(FlintError):
            draw("gpipe", 2, 2, 2)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_drawing_has_a_box_for_each_unit(schedule):
    root = ElementTree.fromstring(svg(schedule, 3, 4))
    space = "{http://www.w3.org/2000/svg}"
    units = [unit for order in orders(schedule, 3, 4) for unit in order]
    labels = [text.text for text in root.findall(f"{space}g/{space}text")]
    assert labels == [str(unit.microbatch) for unit in units]
    assert len(root.findall(f"{space}g/{space}rect")) == len(units)


def test_text_pictures_of_the_page_are_drawn_by_flint():
    shown = re.findall(
        r"^<!-- picture: (\S+) (\d+) (\d+) (\d+) -->\n```text\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert {name for name, *_ in shown} == set(SCHEDULES)
    for name, ranks, microbatches, chunks, text in shown:
        assert text == picture(name, int(ranks), int(microbatches), int(chunks))


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), DRAWN)
def test_drawings_of_the_page_are_drawn_by_flint(name, ranks, microbatches, chunks):
    path = DOCS / "pictures" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == svg(name, ranks, microbatches, chunks)
    assert f"(pictures/{path.name})" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), DRAWN)
def test_numbers_of_the_page(name, ranks, microbatches, chunks):
    found = orders(name, ranks, microbatches, chunks)
    bubble = float(SCHEDULES[name].bubble(ranks, microbatches, chunks))
    held = ", ".join(str(activations_held(order)) for order in found)
    row = f"| `{name}` | {chunks} | {bubble:.1%} | {held} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()
