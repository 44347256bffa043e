"""Cluster files that people spoil are refused with a place, or read: nothing else is raised."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.load import PRESETS
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from tests.random_programs import QUICK

OURS = (
    'name = "ours"\ntitle = "t"\nbase = "h100-dgx"\n[chip]\nname = "c"\n[[network]]\nname = "ib"\n'
    'size = 64\n[[network]]\nname = "wan"\nkind = "switch"\nsize = 0\nlatency_ns = { value = 1, '
    'kind = "assumed", source = "s" }\n'
)
TEXTS = [OURS, *((PRESETS / f"{n}.toml").read_text("utf-8") for n in ("h100-dgx", "v5p"))]
#: What is written where a value was.
VALUES = [
    *("0", "-1", "1", "1.5", "nan", "inf", "-inf", "1e308", "1e-308", "9" * 400, "1e15", "8"),
    *("true", '""', '"x"', '"switch"', '"torus"', '"h100-dgx"', "[]", "[1]", "[[]]", "{}"),
    *("{ value = 1 }", "2020-01-01", '{ value = -1, kind = "assumed", source = "s" }', ""),
]


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """A file with a few lines changed, removed, doubled or moved."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["value", "inner", "key", "remove", "double", "move"]))
        if change == "value":
            key, equals, _ = lines[at].partition("= ")
            lines[at] = key + equals + draw(st.sampled_from(VALUES))
        elif change == "inner":
            key, value, rest = re.split(r"(value = [^,]*)|$", lines[at], maxsplit=1)
            new = f"value = {draw(st.sampled_from(VALUES))}" if value else ""
            lines[at] = key + new + rest
        elif change == "key":
            lines[at] = lines[at].replace(draw(st.sampled_from('aeiou_.[]"')), "", 1)
        elif change == "remove" and len(lines) > 1:
            del lines[at]
        elif change == "double":
            lines.insert(at, lines[at])
        else:
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clusters") / "ours.toml"


@QUICK
@given(text=spoilt())
def test_a_spoilt_file_is_refused_or_read(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    try:
        found = Cluster.load(path)
    except FlintError as error:
        assert error.code in ("FL701", "FL702")
        assert error.place is not None and error.place.startswith(str(path)), error
        assert error.message and "\n" not in error.message
        return
    for tier, network in zip(found.members, found.network, strict=True):
        assert tier >= 0 and 0 < network.bandwidth_bytes_per_s.value < math.inf
    try:
        placed = NetworkPlacement(Mesh.parse("6x4"), found)
    except FlintError as error:
        assert error.code == "FL703"
    else:
        assert math.prod(p.size for p in placed.parts) == 24
