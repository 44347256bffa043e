"""`base`: a cluster file that says only what differs from another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flint.cluster.load import lenders
from flint.cluster.models import Cluster
from flint.errors import FlintError

OWN = """\
name = "ours"
title = "DGX H100 with two adapters"
base = "h100-dgx"
derate = { value = 0.9, kind = "measured", source = "our own runs" }
host_launch_ns = { value = 7000, kind = "measured", source = "our own runs" }

[chip]
memory_bytes = { value = 94e9, kind = "datasheet", source = "d" }

[chip.gpu.constants]
"gemm.efficiency" = { value = 0.8, kind = "measured", source = "our own runs" }

[[network]]
name = "ib"
bandwidth_bytes_per_s = { value = 12.5e9, kind = "datasheet", source = "two adapters" }
"""


def written(tmp_path: Path, text: str, name: str = "ours.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def failing(path: Path) -> FlintError:
    with pytest.raises(FlintError) as caught:
        Cluster.load(path)
    return caught.value


def test_a_file_changes_what_it_names_and_keeps_the_rest(tmp_path: Path) -> None:
    ours, base = Cluster.load(written(tmp_path, OWN)), Cluster.load("h100-dgx")
    assert (ours.name, ours.base, ours.aliases) == ("ours", "h100-dgx", ())
    assert (ours.derate.value, base.host_launch_ns) == (0.9, None)
    assert ours.host_launch_ns is not None and ours.host_launch_ns.value == 7000
    assert ours.chip.memory_bytes.value == 94e9
    assert ours.chip.peak_flops_per_s == base.chip.peak_flops_per_s
    assert ours.chip.gpu is not None and base.chip.gpu is not None
    changed = {k for k, v in ours.chip.gpu.constants.items() if v != base.chip.gpu.constants.get(k)}
    assert changed == {"gemm.efficiency"}
    assert [n.name for n in ours.network] == ["nvlink", "ib"]
    assert ours.network[0] == base.network[0]
    assert ours.network[1].bandwidth_bytes_per_s.value == 12.5e9
    assert ours.network[1].latency_ns == base.network[1].latency_ns


def test_a_base_may_be_a_file_beside_and_have_a_base(tmp_path: Path) -> None:
    written(tmp_path, OWN)
    more = 'name = "more"\ntitle = "t"\nbase = "./ours.toml"\n'
    found = Cluster.load(written(tmp_path, more, "more.toml"))
    assert (found.name, found.derate.value, found.network[1].name) == ("more", 0.9, "ib")


def test_a_further_network_comes_outside_of_the_base_s(tmp_path: Path) -> None:
    text = """\
name = "pods"
title = "t"
base = "h100-dgx"

[[network]]
name = "ib"
size = 256

[[network]]
name = "wan"
kind = "switch"
size = 0
bandwidth_bytes_per_s = { value = 1e9, kind = "assumed", source = "s" }
latency_ns = { value = 1e6, kind = "assumed", source = "s" }
"""
    found = Cluster.load(written(tmp_path, text))
    assert [(n.name, n.size) for n in found.network] == [("nvlink", 8), ("ib", 256), ("wan", 0)]


def test_an_unknown_key_of_a_network_has_its_own_line(tmp_path: Path) -> None:
    error = failing(written(tmp_path, OWN + "latencyns = 3\n"))
    assert error.code == "FL701"
    assert "unknown key 'network.1.latencyns'" in error.message and "latency_ns" in error.message
    assert error.place is not None and error.place.endswith(f":{OWN.count(chr(10)) + 1}")


def test_its_name_is_not_taken_over_and_the_base_is_checked_too(tmp_path: Path) -> None:
    assert (
        "'name' is missing" in failing(written(tmp_path, OWN.replace('name = "ours"', ""))).message
    )
    written(tmp_path, OWN.replace("derate", "derat"), "below.toml")
    error = failing(written(tmp_path, OWN.replace("h100-dgx", "./below.toml")))
    assert "below.toml: unknown key 'derat'" in error.message


def test_a_base_that_is_itself_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, 'name = "a"\ntitle = "t"\nbase = "./b.toml"\n', "a.toml")
    path = written(tmp_path, 'name = "b"\ntitle = "t"\nbase = "./a.toml"\n', "b.toml")
    error = failing(path)
    assert error.code == "FL701" and "b.toml -> a.toml -> b.toml" in error.message


def test_a_base_that_nobody_has(tmp_path: Path) -> None:
    error = failing(written(tmp_path, OWN.replace("h100-dgx", "h10-dgx")))
    assert error.code == "FL702" and "h100-dgx" in error.message
    assert error.place is not None and error.place.endswith("ours.toml:3")


def test_a_base_is_a_name(tmp_path: Path) -> None:
    assert (
        "should be the name" in failing(written(tmp_path, OWN.replace('"h100-dgx"', "3"))).message
    )


def test_what_is_wrong_in_the_only_network_is_named(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "flint/cluster/presets/v5e.toml").read_text("utf-8")
    head, _, _ = text.partition("[[network]]")
    only = '[[network]]\nname = "ici"\nkind = "switch"\nsize = 0\nlatency_n = 3\n'
    assert "latency_n" in failing(written(tmp_path, head + only)).message


def test_a_misspelt_network_of_the_base_is_named(tmp_path: Path) -> None:
    error = failing(written(tmp_path, OWN.replace('name = "ib"', 'name = "ibb"')))
    assert error.message == (
        "ours.toml: no network of base 'h100-dgx' is called 'ibb'; did you mean 'ib'?"
    )
    assert error.help == "its networks are nvlink, ib; an additional one needs its own 'kind'"
    assert error.place is not None and error.place.endswith(":13")


@pytest.mark.parametrize("base", ["./nowhere.toml", "./", "nowhere.toml"])
def test_a_base_that_is_no_file(tmp_path: Path, base: str) -> None:
    error = failing(written(tmp_path, OWN.replace("h100-dgx", base)))
    assert error.code == "FL701" and "its base is not a file" in error.message
    assert error.place is not None and error.place.endswith("ours.toml:3")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "a network on top of base 'h100-dgx' has no name"),
        ('name = ["ib"]', "the name of a network should be a text, it is ['ib']"),
    ],
)
def test_a_network_on_top_of_a_base_has_a_name(tmp_path: Path, name: str, said: str) -> None:
    error = failing(written(tmp_path, OWN.replace('name = "ib"', name)))
    assert said in error.message
    assert error.help is not None and "nvlink, ib" in error.help


def test_a_chain_of_bases_ends(tmp_path):
    for i in range(1200):
        text = f'name = "c{i}"\ntitle = "t"\nbase = "c{i + 1}.toml"\n'
        (tmp_path / f"c{i}.toml").write_text(text)
    with pytest.raises(FlintError, match="its chain of bases has more than 16 files") as caught:
        Cluster.load(tmp_path / "c0.toml")
    assert caught.value.code == "FL701" and caught.value.place.endswith(":3")


def test_constants_that_another_chip_has_from_its_base_are_assumed(tmp_path: Path) -> None:
    more = OWN.replace("[chip]\n", '[chip]\nname = "ours"\n')
    gpu = Cluster.load(written(tmp_path, more)).chip.gpu
    assert gpu is not None
    lent = gpu.constants["gemm.launch_ns"]
    assert (lent.kind, gpu.constants["gemm.efficiency"].kind) == ("assumed", "measured")
    assert lent.source.startswith("as H100-SXM5-80GB: ")
    assert sum(lenders(gpu.constants).values()) == len(gpu.constants) - 1


@pytest.mark.parametrize(
    ("key", "is_another"),
    [("memory_bandwidth_bytes_per_s", True), ("power_w", True), ("host_link_bytes_per_s", False)],
)
def test_what_makes_a_chip_another_one(tmp_path: Path, key: str, *, is_another: bool) -> None:
    number = '{ value = 1e3, kind = "datasheet", source = "d" }'
    gpu = Cluster.load(
        written(tmp_path, OWN.replace("[chip]\n", f"[chip]\n{key} = {number}\n"))
    ).chip.gpu
    assert gpu is not None
    assert ("H100-SXM5-80GB" in lenders(gpu.constants)) == is_another


def test_constants_of_another_fabric_are_assumed_and_measured_on_none(tmp_path: Path) -> None:
    ours = Cluster.load(written(tmp_path, OWN))
    assert set(lenders(ours.network[1].constants)) == {"ib of h100-dgx", "efa of h100-efa"}
    assert ours.network[1].measured_members == 1
    assert not lenders(ours.network[0].constants)


def test_a_network_may_replace_one_of_the_base(tmp_path: Path) -> None:
    tier = """\
name = "roce"
replaces = "ib"
kind = "switch"
size = 0
latency_ns = { value = 4000, kind = "assumed", source = "d" }
"""
    ours = Cluster.load(written(tmp_path, OWN.replace('name = "ib"\n', tier)))
    assert [n.name for n in ours.network] == ["nvlink", "roce"]
    assert (ours.network[1].constants, ours.network[1].measured_members) == ({}, 0)


def test_what_is_replaced_is_there(tmp_path: Path) -> None:
    error = failing(
        written(tmp_path, OWN.replace('name = "ib"\n', 'name = "ib"\nreplaces = "ibb"\n'))
    )
    assert "unknown key 'network.1.replaces'" in error.message


def test_presets_on_a_base_say_what_they_borrow() -> None:
    gb300 = Cluster.load("gb300-nvl72")
    assert gb300.chip.gpu is not None and lenders(gb300.chip.gpu.constants)
    assert lenders(Cluster.load("a100-80-hdr4").network[1].constants)
    for name in ("h100-efa", "a100-80-efa"):  # another fabric, with nothing of the base's
        outer = Cluster.load(name).network[1]
        assert outer.name == "efa" and "ib of h100-dgx" not in lenders(outer.constants)
    assert "ib of h100-dgx" in lenders(Cluster.load("h100-roce").network[1].constants)
