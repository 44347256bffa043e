"""Fitted constants go into a cluster file and nothing else in it moves."""

import tomllib

import pytest

from benchmarks.fits.fit import set_constants, with_constants
from flint.cluster.load import PRESETS
from flint.cluster.models import Cluster

ONE = {"gemm.efficiency": (0.87654321, "fitted", 'rows of "a", see b')}
OLD = {"own_part": (0.4, "fitted", "rows of d")}
TWO = {"a0_ns": (1234.0, "fitted", "rows of c"), "c": (1e-7, "assumed", "ü")}


@pytest.fixture
def h100(tmp_path):
    path = tmp_path / "h100.toml"
    path.write_bytes((PRESETS / "h100-dgx.toml").read_bytes())
    text = path.read_text("utf-8")
    if "constants" in text:  # start from a file without any
        keep, skip = [], False
        for line in text.splitlines():
            if line.startswith("["):
                skip = line.strip().endswith(".constants]")
            if not skip:
                keep.append(line)
        path.write_text("\n".join(keep) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("table", "constants"),
    [("chip.gpu.constants", ONE), ("network.nvlink.constants", TWO), ("network.ib.constants", TWO)],
)
def test_a_new_table_appears_and_every_line_of_the_file_stays(h100, table, constants):
    before = h100.read_text("utf-8")
    set_constants(h100, table, constants)
    after = h100.read_text("utf-8")
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert len(added) == 1 + len(constants)
    rest = [line for line in after.splitlines() if line not in added and line]
    assert rest == [line for line in before.splitlines() if line]
    cluster = Cluster.load(h100)
    found = {
        "chip.gpu.constants": cluster.chip.gpu.constants,
        "network.nvlink.constants": cluster.network[0].constants,
        "network.ib.constants": cluster.network[1].constants,
    }
    for name, held in found.items():
        assert set(held) == (set(constants) if name == table else set())
    for key, (value, kind, source) in constants.items():
        assert found[table][key].value == pytest.approx(value, rel=1e-6)
        assert (found[table][key].kind, found[table][key].source) == (kind, source)


def test_others_of_a_table_stay_and_writing_twice_changes_nothing(h100):
    set_constants(h100, "chip.gpu.constants", ONE)
    for table in ("network.nvlink.constants", "network.ib.constants"):
        set_constants(h100, table, OLD)
    set_constants(h100, "network.nvlink.constants", TWO)
    once = h100.read_bytes()
    set_constants(h100, "network.nvlink.constants", TWO)
    assert h100.read_bytes() == once
    cluster = Cluster.load(h100)
    assert [set(n.constants) for n in cluster.network] == [{*TWO, *OLD}, set(OLD)]
    assert set(cluster.chip.gpu.constants) == set(ONE)


def test_comments_stay_where_they_were(tmp_path):
    text = (
        "# head\n[chip.gpu]\nsms = 1  # of them\n\n# about the tier\n[[network]]\n"
        'name = "x"\n\n# about the second\n[[network]]\nname = "y"\n# the end\n'
    )
    new = with_constants(text, "chip.gpu.constants", TWO)
    new = with_constants(new, "network.x.constants", ONE)
    order = [line for line in new.splitlines() if line.startswith(("#", "["))]
    assert order == [
        "# head",
        "[chip.gpu]",
        "[chip.gpu.constants]",
        "# about the tier",
        "[[network]]",
        "[network.constants]",
        "# about the second",
        "[[network]]",
        "# the end",
    ]
    assert tomllib.loads(new)["network"][0]["constants"]["gemm.efficiency"]["value"] == 0.876543


@pytest.mark.parametrize(
    ("table", "constants", "said"),
    [
        ("chip.systolic.constants", TWO, "no table"),
        ("network.ici.constants", TWO, "no table"),
        ("chip.gpu.constants", {"a": (1.0, "guessed", "b")}, "guessed"),
        ("chip.gpu.constants", {"a": (1.0, "fitted", "")}, "no source"),
    ],
)
def test_what_cannot_be_written_leaves_the_file_alone(h100, table, constants, said):
    before = h100.read_bytes()
    with pytest.raises(ValueError, match=said):
        set_constants(h100, table, constants)
    assert h100.read_bytes() == before
