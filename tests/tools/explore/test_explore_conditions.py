"""`--where`: what conditions mean, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.tools.explore.evaluation.tokens import tokens_by
from flint.tools.explore.point import Point, PointField
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.space.names import Scope

SCOPE = Scope(
    ("pipe", "data", "seq"), ("microbatches", "remat", "seq", "batch-size", "tokens", "clip")
)
POINT = Point("pipe=4,data=16,seq=2", "h100-dgx", estimate=(("policy", "xla"),))
FIXED = (
    ("batch-size", "1024"),
    ("clip", "None"),
    ("microbatches", "8"),
    ("remat", "full"),
    ("seq", "8192"),
    ("tokens", "70"),
)
RESULTS = {"memory": 70 * 2**30, "memory_bytes": 70 * 2**30, "time": 2e9, "mfu": 0.4}
NAMES = SCOPE.at(POINT, FIXED) | SCOPE.results(RESULTS)
WORDS = {"remat": ("none", "full")}


def holds(text: str) -> bool:
    return parse_conditions([text], SCOPE, WORDS)[0].holds(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "microbatches * pipe * data == 512",
        "devices == 128 and pipe <= 4",
        "1 < pipe < data",
        "data % pipe == 0 and data // pipe == 4 and data / pipe == 4.0",
        "2 ** pipe == data",
        "-pipe + 5 == +1",
        "not pipe > 4",
        "pipe == 3 or data == 16",
        'remat == "full"',
        "remat == full",
        "remat in (none, full) and remat not in ('none',)",
        "set.seq == 8192 and mesh.seq == 2",
        "set.seq == 8k + 192",
        "batch_size == 1_024",
        'set.tokens == "70"',
        'cluster == "h100-dgx" and overlap == "xla" and stack == ""',
        "memory <= 70GiB and memory < 80GB and memory_bytes > 1",
        "time <= 2s and time > 1999ms and 0 < time",
        "memory / 2 <= 35GiB and memory - 1GiB < 70GiB",
        "mfu >= 0.4",
        "result.tokens == 70 or pipe == 4",
        "clip == None and remat != None",
    ],
)
def test_conditions_that_hold(text):
    if text.startswith("result."):
        NAMES["result.tokens"] = 7
    assert holds(text) is True
    assert holds(f"not ({text})") is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("pipe = 4", "cannot be read"),
        ("pipe ==", "cannot be read"),
        ("(" * 300 + "1" + ")" * 300, "cannot be read"),
        ("not " * 60 + "pipe == 1", "is nested too deeply"),
        ("pipe == 1 " * 300, "has more than 2,000 letters"),
        ("__import__('os').system('true') == 0", "cannot be part of a condition"),
        ("(lambda: 1)() == 1", "cannot be part of a condition"),
        ("[x for x in (1,)] == 1", "cannot be part of a condition"),
        ("pipe is 4", "has 'is'"),
        ("remat in 'full'", "without a list"),
        ("pipe * 4", "is neither true nor false"),
        ("pippe == 4", "unknown name 'pippe'; did you mean 'pipe'?"),
        ("remat == ful", "unknown name 'ful'; did you mean 'full'?"),
        ("seq == 2", "'seq' is ambiguous"),
        ("tokens == 2", "'tokens' is ambiguous"),
        ("pipe.data == 2", "unknown name 'pipe.data'"),
        ("set.pipe == 2", "unknown name 'set.pipe'"),
        ("memory <= 70GX", "'70GX' has an unknown unit"),
        ("memory <= 2s", "has bytes beside ns"),
        ("memory <= 80", "has bytes beside a plain number"),
        ("time + memory < 1s", "has ns beside bytes"),
        ("pipe <= 4GiB", "has a plain number beside bytes"),
        ("remat > 3", "'full' > 3 does not compare numbers"),
        ("remat + 1 == 3", "'full' beside + is not a number"),
        ("pipe % (data - 16) == 1", "4 % 0 is a division by 0"),
        ("10 ** 1000 == pipe", "10 ** 1000 is too large"),
        ("10.0 ** 64 * 1e300 == pipe", "is not a number"),
        ("pipe and data == 1", "4 is neither true nor false"),
        ("pipe", "is neither true nor false"),
    ],
)
def test_conditions_that_are_refused(text, said):
    with pytest.raises(FlintError) as caught:
        holds(text)
    assert caught.value.code == "FL861"
    assert said in caught.value.message


def test_what_needs_results_is_told_apart():
    found = parse_conditions(["pipe == 4", "memory <= 70GiB", "result.tokens > pipe"], SCOPE)
    assert [c.of_results for c in found] == [False, True, True]


def test_a_single_equals_sign_is_explained():
    with pytest.raises(FlintError) as caught:
        holds("data=4")
    assert caught.value.help == "== compares, = does not"


SMALL = st.integers(1, 20)


@given(SMALL, SMALL, SMALL, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]))
def test_arithmetic_is_that_of_python(left, right, limit, symbol):
    scope = Scope(("left", "right"), ())
    names = scope.of(PointField.MESH, "mesh", f"left={left},right={right}")
    condition = parse_conditions([f"left {symbol} right + 1 <= {limit} * 3"], scope)[0]
    assert condition.holds(names) == eval(f"{left} {symbol} {right} + 1 <= {limit} * 3")


def test_tokens_are_not_those_of_an_axis_that_is_called_like_an_option():
    mesh, options = "data=4,seq=2", {"seq": "8192", "batch": "16"}
    assert tokens_by("batch * set.seq", mesh, options).count == 16 * 8192
    assert tokens_by("data * mesh.seq", mesh, options).count == 8
    with pytest.raises(FlintError, match="'seq' is not known"):
        tokens_by("batch * seq", mesh, options)
