"""Pictures of schedules, and those in docs/ are what Flint draws."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from flint.cli import app
from flint.errors import FlintError
from flint.passes.pipeline.schedule.pictures import picture, svg
from flint.passes.pipeline.schedule.schedules import SCHEDULES
from flint.passes.pipeline.schedule.simulate import timed
from tests.published_schedules import BUBBLE

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "pipelines.md"
#: name, ranks, microbatches and chunks of the drawing in docs/pictures
DRAWN = [(name, 4, 8, found.fewest_chunks) for name, found in SCHEDULES.items()]


def test_picture_by_hand():
    assert picture(timed("1f1b", 2, 2)) == (
        "rank 0 | 0 1 . . b0  . b1\n"
        "rank 1 | . 0 b0  1 b1  . .\n"
    )  # fmt: skip
    assert picture(timed("zb-h1", 2, 1)) == (
        "rank 0 | 0  .  .  b0 w0\n"
        "rank 1 | .  0  b0 w0 .\n"
    )  # fmt: skip


def test_chunks_are_told_apart():
    assert picture(timed("forward", 1, 1, 3)) == "rank 0 | 0   0'  0''\n"


def test_names_of_ranks_are_aligned():
    assert {line.index("|") for line in picture(timed("forward", 11, 1)).splitlines()} == {8}


def test_impossible_schedules_are_refused():
    with pytest.raises(FlintError):
        timed("gpipe", 2, 2, 2)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_drawing_has_a_box_for_each_unit(schedule):
    found = timed(schedule, 3, 6, SCHEDULES[schedule].fewest_chunks)
    root = ElementTree.fromstring(svg(found))
    space = "{http://www.w3.org/2000/svg}"
    units = [unit for order in found.orders for unit in order]
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
        assert text == picture(timed(name, int(ranks), int(microbatches), int(chunks)))


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), DRAWN)
def test_drawings_of_the_page_are_drawn_by_flint(name, ranks, microbatches, chunks):
    path = DOCS / "pictures" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == svg(timed(name, ranks, microbatches, chunks))
    assert f"(pictures/{path.name})" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), DRAWN)
def test_numbers_of_the_page(name, ranks, microbatches, chunks):
    found = timed(name, ranks, microbatches, chunks)
    assert found.idle == BUBBLE[name](ranks, microbatches, chunks)
    held = ", ".join(map(str, found.held))
    row = f"| `{name}` | {chunks} | {float(found.idle):.1%} | {held} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()


def flint(*arguments):
    return CliRunner().invoke(app, ["schedules", *arguments], prog_name="flint")


def test_the_command_lists_schedules_with_their_numbers():
    head, *lines = flint().stdout.splitlines()
    assert head.split() == ["name", "chunks", "waits", "holds"]
    assert [line.split()[0] for line in lines] == list(SCHEDULES)
    assert lines[4].startswith("zb-v                   2   5.9%  8, 8, 8, 8   two stages per rank")
    (impossible,) = [
        line for line in flint("--microbatches", "7").stdout.splitlines() if "cannot fill" in line
    ]
    assert impossible.startswith("dualpipev")


def test_the_command_draws_one_schedule(tmp_path):
    shown = flint("1f1b", "--ranks", "2", "--microbatches", "2", "--svg", str(tmp_path / "x.svg"))
    found = timed("1f1b", 2, 2)
    assert picture(found) in shown.stdout
    assert "waits for 33.3% of the step" in shown.stdout and shown.stdout.endswith(": 2, 1.\n")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == svg(found)


def test_the_command_prints_when_each_pass_runs():
    printed = json.loads(flint("zb-v", "--ranks", "2", "--microbatches", "3", "--json").stdout)
    assert printed["schema"] == "flint.schedules/1"
    found = printed["schedule"]
    assert found["stages"] == [[0, 3], [1, 2]] and found["idle"] == 1 / 19
    assert found["units"][1][1] == {
        "pass": "forward",
        "chunk": 1,
        "microbatch": 0,
        "start": 2,
        "end": 3,
    }
    listed = json.loads(flint("--json", "--microbatches", "7").stdout)["schedules"]
    assert [s["name"] for s in listed] == list(SCHEDULES)
    assert (
        "cannot fill 4 ranks" in next(s for s in listed if s["name"] == "dualpipev")["impossible"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--svg", "x.svg"), "error[FL218]: --svg draws one schedule"),
        (("1f1c",), "error[FL246]: unknown schedule '1f1c'; did you mean '1f1b'?"),
        (("gpipe", "--chunks", "2"), "error[FL246]: schedule 'gpipe' has one stage per rank"),
        (("gpipe", "--ranks", "0"), "error[FL246]: a pipeline with 0 ranks"),
    ],
)
def test_what_the_command_refuses(arguments, message):
    result = flint(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
