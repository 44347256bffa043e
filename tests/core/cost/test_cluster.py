"""Cluster files: the presets are sound, and mistakes in a user's file are named with their line."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from flint.backends.cost.chips.families.gpu.constants import (
    HEAD_SIZES,
    INSTEAD,
    NEEDED,
    UNLESS_SAID,
    reference_chip,
)
from flint.backends.cost.chips.families.systolic.constants import CONSTANTS as SYSTOLIC
from flint.backends.cost.chips.kernel_table import element_type
from flint.backends.cost.collectives.algorithm import Speed
from flint.cluster.load import PRESETS, key_lines, preset_aliases
from flint.cluster.models import Cluster, SourceKind
from flint.cluster.tables import ELEMENT_TYPES, NETWORK, OF_ALGORITHMS
from flint.errors import FlintError
from flint.passes.tensors import dtype_name

_NAMES = """
a100-40-dgx a100-80-dgx a100-80-efa a100-80-hdr4 a100-80-pcie b200-dgx b300-hgx
gb200-nvl72 gb300-nvl72 h100-500w h100-dgx h100-efa h100-roce h200-dgx l40s mi300x
mi325x mi350x mi355x rtx-pro-6000 trn2 v4 v5e v5p v6e v7
"""
PRESET_NAMES = _NAMES.split()
#: A cluster with nothing optional in it, to be spoilt.
SMALL = """\
name = "small"
title = "a small one"
derate = { value = 1.0, kind = "assumed", source = "none" }

[chip]
name = "one"
memory_bytes = { value = 8e9, kind = "datasheet", source = "d" }
memory_bandwidth_bytes_per_s = { value = 1e12, kind = "datasheet", source = "d" }

[chip.peak_flops_per_s]
bf16 = { value = 1e14, kind = "datasheet", source = "d" }

[chip.gpu]
sms = { value = 100, kind = "datasheet", source = "d" }
clock_hz = { value = 1e9, kind = "datasheet", source = "d" }
l2_bytes = { value = 4e7, kind = "datasheet", source = "d" }

[[network]]
name = "inner"
kind = "switch"
size = 8
bandwidth_bytes_per_s = { value = 1e11, kind = "datasheet", source = "d" }
latency_ns = { value = 1000, kind = "assumed", source = "d" }

[[network]]
name = "outer"
kind = "switch"
size = 0
bandwidth_bytes_per_s = { value = 1e10, kind = "datasheet", source = "d" }
latency_ns = { value = 2000, kind = "assumed", source = "d" }
"""


def _error(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(FlintError) as caught:
        Cluster.load(path)
    assert caught.value.code == "FL701"
    return caught.value


def test_the_presets_are_these():
    assert Cluster.names() == PRESET_NAMES


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_a_preset_is_sound(name):
    cluster = Cluster.load(name)
    assert cluster.name == name
    chip = cluster.chip
    assert chip.family is not None
    assert {"bf16", "f32", "i8"} <= set(chip.peak_flops_per_s) or name == "l40s"
    sizes = [n.size for n in cluster.network]
    assert sizes[-1] == 0 and all(sizes[:-1])
    bandwidths = [
        n.bandwidth_bytes_per_s.value * (n.links if n.torus_dimensions else 1)
        for n in cluster.network
    ]
    assert bandwidths == sorted(bandwidths, reverse=True)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "v7", "trn2"])
def test_the_peak_of_systolic_arrays_is_that_of_their_cells(name):
    chip = Cluster.load(name).chip
    s = chip.systolic
    cells = s.cores.value * s.arrays.value * s.rows.value * s.columns.value
    assert 2 * cells * s.clock_hz.value == pytest.approx(
        chip.peak_flops_per_s["bf16"].value, rel=0.01
    )


@pytest.mark.parametrize(
    "name",
    [
        *("a100-80-dgx", "h100-dgx", "h100-500w", "h200-dgx", "b200-dgx", "b300-hgx"),
        *("gb200-nvl72", "gb300-nvl72", "l40s", "rtx-pro-6000", "mi300x", "mi325x", "mi350x"),
    ],
)
def test_the_peak_of_tensor_cores_is_that_of_their_clock(name):
    """FLOP per SM and cycle are a power of two.

    1,024 (L40S, RTX PRO 6000), 2,048 (A100, MI300X), 4,096 (H100, MI355X), 8,192 (B200).
    """
    chip = Cluster.load(name).chip
    per_cycle = chip.peak_flops_per_s["bf16"].value / chip.gpu.sms.value / chip.gpu.clock_hz.value
    generation = dict.fromkeys("AM", 2048) | dict.fromkeys("BG", 8192) | dict.fromkeys("LR", 1024)
    generation |= {"H": 4096, "MI35": 4096}
    assert per_cycle == pytest.approx(
        generation.get(chip.name[:4], generation[chip.name[0]]), rel=0.015
    )


def test_aliases_name_one_preset_each():
    aliases = [a for name in PRESET_NAMES for a in Cluster.load(name).aliases]
    assert aliases == [a for name in PRESET_NAMES for a in preset_aliases(name)]
    assert len(set(aliases) | set(PRESET_NAMES)) == len(aliases) + len(PRESET_NAMES)
    assert Cluster.load("h100").name == "h100-dgx"
    assert Cluster.load("tpu-v4").name == "v4"


def test_a_file_is_loaded_by_path_and_a_cluster_is_returned(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALL, "utf-8-sig")
    cluster = Cluster.load(str(path))
    assert Cluster.load(path) == cluster
    assert Cluster.load(cluster) is cluster
    assert cluster.chip.memory_bytes.kind is SourceKind.DATASHEET
    assert (cluster.tier("outer"), cluster.tier("none")) == (1, -1)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(FlintError, match="did you mean 'h100-dgx'") as caught:
        Cluster.load("h100-dgz")
    assert caught.value.code == "FL702"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("l2_bytes", "l2_byte", 16, "unknown key 'chip.gpu.l2_byte'; did you mean 'l2_bytes'?"),
        ("size = 0", "sise = 0", 28, "unknown key 'network.1.sise'; did you mean 'size'?"),
        ("title", "titel", 2, "unknown key 'titel'; did you mean 'title'?"),
        ("value = 1e14, ki", "valu = 1e14, ki", 11, "'chip.peak_flops_per_s.bf16.valu'"),
        ("size = 8\n", "", 18, "key 'network.0.size' is missing"),
        ("= 1e11", "= -1e11", 22, "'network.0.bandwidth_bytes_per_s' should be greater than 0"),
        ("= 1e11", "= 0", 22, "'network.0.bandwidth_bytes_per_s' should be greater than 0"),
        ("= 1000,", "= -1,", 23, "'network.0.latency_ns' should not be negative"),
        ("= 100,", "= 1.5,", 14, "'chip.gpu.sms' should be a whole number"),
        ("value = 8e9", 'value = "8e9"', 7, "'chip.memory_bytes.value' should be a number, it is"),
        ("value = 8e9", "value = true", 7, "'chip.memory_bytes.value' should be a number, it is"),
        ("value = 8e9", "value = inf", 7, "'chip.memory_bytes.value' should be a finite number"),
        ('source = "none"', 'source = ""', 3, "'derate.source'"),
        ('kind = "assumed", source = "none"', 'kind = "guess", source = "n"', 3, "'derate.kind'"),
        ("size = 8", "size = true", 21, "'network.0.size' should be a whole number, it is true"),
        ('"switch"\nsize = 8', '"torus"\nsize = 8', 18, "'network.0' is a torus: torus_shape"),
        ("size = 8", "size = 8\ntorus_dimensions = 2", 18, "'network.0' is a switch"),
        ("size = 8", "size = 0", 18, "'network.0' is without limit (size 0)"),
        (
            '"switch"\nsize = 8',
            '"torus"\nsize = 8\ntorus_dimensions = 2\ntorus_shape = [2, 3]',
            18,
            "'network.0' has a torus_shape of 2x3, which does not match its size of 8 chips",
        ),
        (
            "size = 0",
            "size = 12",
            25,
            "'network.1' has a size of 12, which is not a multiple of the 8 chips",
        ),
        ('"outer"', '"inner"', 25, "'network.1' has the name of another network, 'inner'"),
        ("= 1e11", "= 1e31", 22, "should be 0 or between 1e-30 and 1e+30, it is 1e+31"),
        ("= 1e11", "= 1e-31", 22, "should be 0 or between 1e-30 and 1e+30, it is 1e-31"),
        ("size = 8", "size = 9999999999999", 21, "'network.0.size' should be less than or equal"),
        ('"switch"', '"swich"', 20, "it is 'swich'; did you mean 'switch'?"),
        ("[[network]]", "[network]", 25, "is not a TOML file: Cannot overwrite a value"),
        ('"outer"', '"out,er"', 26, "'network.1.name' should have no comma"),
        ('"outer"', '"a=b"', 26, "'network.1.name' should have no comma, equals sign"),
        ("bf16", "bf61", 11, "'chip.peak_flops_per_s.bf61'; did you mean 'bf16'?"),
        ("bf16", "bfloat16", 11, "'chip.peak_flops_per_s.bfloat16'; did you mean 'bf16'?"),
        ("[[network]]", "[[networks]]", 18, "unknown key 'networks'; did you mean 'network'?"),
        ("value = 1.0", "value = 1.5", 3, "'derate' should be greater than 0 and at most 1"),
        ("value = 1.0", "value = 0.0", 3, "'derate' should be greater than 0 and at most 1"),
        ("[chip.gpu]", "[chip.gpu]\nlike = 'h100-dgxx'", 14, "did you mean 'h100-dgx'?"),
        ("[chip.gpu]", "[chip.gpu]\nlike = 'v5p'", 14, "'v5p', which is not a chip with constants"),
        ('name = "small"', 'name = ""', 1, "key 'name' should not be empty"),
        ("[chip.peak_flops_per_s]", "[chip.peak_flops_per_s.x]", 10, "peak_flops_per_s.x'"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, old, new, line, said):
    assert old in SMALL
    error = _error(tmp_path, SMALL.replace(old, new, 1))
    assert said in error.message
    assert error.message.startswith("small.toml")
    assert len(error.message) < 200
    assert error.place == str(tmp_path / "small.toml") + (f":{line}" if line else "")


CONSTANT = '{ value = 0.9, kind = "measured", source = "s" }'


@pytest.mark.parametrize(
    ("table", "line", "said"),
    [
        ("chip.gpu", '"gemm.eficiency" = 0.9', "gemm.eficiency'; did you mean 'gemm.efficiency'?"),
        ("chip.gpu", '"attention.efficiency.x" = 0.9', "attention.efficiency.x'; did you mean"),
        (
            "chip.gpu",
            '"gemm.efficiency" = 0.96',
            "'chip.gpu.constants.gemm.efficiency' should be g",
        ),
        ("chip.gpu", '"attention.efficiency.96" = 1', "greater than 0 and at most 0.95, it is 1"),
        ("chip.gpu", '"gemm.launch_ns" = 1499', "should be at least 1500, it is 1499"),
        ("chip.gpu", '"gemm.step_ns" = -1', "should be at least 0, it is -1"),
        ("chip.gpu", '"gemm.overlap" = 0.5', "should be at least 1, it is 0.5"),
        (
            "network",
            "eficiency = 0.9",
            "'network.1.constants.eficiency'; did you mean 'efficiency'?",
        ),
        ("network", "efficiency = 0", "should be greater than 0 and at most 1, it is 0"),
        ("network", "efficiency = 1.1", "should be greater than 0 and at most 1, it is 1.1"),
        ("network", "nvls_from = 1", "should be at least 2, it is 1"),
        ("network", "'a0_ns' = -5", "'network.1.constants.a0_ns' should be at least 0, it is -5"),
    ],
)
def test_a_constant_is_known_and_within_its_bounds(tmp_path, table, line, said):
    key, _, value = line.partition(" = ")
    text = SMALL + f"\n[{table}.constants]\n{key} = {CONSTANT.replace('0.9', value)}\n"
    error = _error(tmp_path, text)
    assert said in error.message
    assert error.place == f"{tmp_path / 'small.toml'}:{text.count(chr(10))}"


def test_constants_of_systolic_arrays_are_known_too(tmp_path):
    text = (PRESETS / "v5e.toml").read_text("utf-8")
    error = _error(tmp_path, text.replace('"norm.vmem_ratio"', '"norm.vmem_ration"'))
    assert "norm.vmem_ration'; did you mean 'norm.vmem_ratio'?" in error.message
    error = _error(
        tmp_path,
        text.replace(
            '"gemm.memory_efficiency" = { value = 0', '"gemm.memory_efficiency" = { value = 9'
        ),
    )
    assert "should be greater than 0 and at most 0.95" in error.message


def test_networks_are_arrays_of_tables(tmp_path):
    head, inner, _ = SMALL.split("[[network]]")
    error = _error(tmp_path, f"{head}[network]{inner}")
    assert "key 'network' should be an array" in error.message
    assert error.help == "write [[network]] above each of them"
    assert error.place.endswith(":18")


def test_a_constant_without_quotes_is_told_to_have_some(tmp_path):
    error = _error(tmp_path, SMALL + f"\n[chip.gpu.constants]\ngemm.efficiency = {CONSTANT}\n")
    assert "unknown key 'chip.gpu.constants.gemm'" in error.message
    assert error.help == 'write the name in quotes: "gemm.efficiency" = ...'


def test_a_chip_may_be_like_a_preset_by_its_name_alias_or_chip(tmp_path):
    for name in ("h100-dgx", "h100", "H100-SXM5-80GB"):
        path = tmp_path / "like.toml"
        path.write_text(SMALL.replace("[chip.gpu]", f'[chip.gpu]\nlike = "{name}"'), "utf-8")
        assert reference_chip(Cluster.load(path).chip).name == "H100-SXM5-80GB"


def test_every_constant_of_every_preset_is_a_known_one_and_none_is_missing():
    """The names that a file may use are those that the models read."""
    chips = [Cluster.load(name).chip for name in PRESET_NAMES]
    gpu = {n for c in chips if c.gpu for n in c.gpu.constants}
    systolic = {n for c in chips if c.systolic for n in c.systolic.constants}
    found = {n for n in gpu if not n.startswith(HEAD_SIZES)}
    assert set(NEEDED) <= found <= {*NEEDED, *INSTEAD, *UNLESS_SAID}
    assert systolic == set(SYSTOLIC)
    every_tier = {f.name for f in fields(Speed)} - {"bandwidth", "domain", "declared"}
    assert {*NETWORK} == {*every_tier, *OF_ALGORITHMS}
    assert not every_tier & set(OF_ALGORITHMS)


@pytest.mark.parametrize("element", [e for e in ELEMENT_TYPES if e != "tf32"])
def test_a_type_of_a_program_has_the_name_that_files_give_it(element):
    assert element_type(dtype_name(element)) == element


def test_two_networks_of_one_name_are_not_silently_one(tmp_path):
    text = 'name = "a"\ntitle = "t"\nbase = "h100-dgx"\n'
    text += '[[network]]\nname = "ib"\nsize = 64\n[[network]]\nname = "ib"\nsize = 128\n'
    error = _error(tmp_path, text)
    assert "'ib'" in error.message and error.place.endswith(":7")


def test_an_unknown_key_is_reported_before_the_one_that_it_replaced(tmp_path):
    error = _error(tmp_path, SMALL.replace("clock_hz", "clok_hz"))
    assert "unknown key 'chip.gpu.clok_hz'; did you mean 'clock_hz'?" in error.message
    assert "sms, clock_hz, l2_bytes" in error.help


def test_a_plain_number_is_told_how_to_be_written(tmp_path):
    error = _error(
        tmp_path, SMALL.replace('{ value = 8e9, kind = "datasheet", source = "d" }', "8")
    )
    assert "'chip.memory_bytes'" in error.message
    assert "value = 1e12" in error.help


def test_a_chip_is_of_one_kind(tmp_path):
    systolic = "\n".join(
        f'{k} = {{ value = 2, kind = "assumed", source = "s" }}'
        for k in ("cores", "arrays", "rows", "columns", "clock_hz", "vmem_bytes")
    )
    error = _error(tmp_path, SMALL + f"\n[chip.systolic]\n{systolic}\n")
    assert "both a gpu and a systolic table" in error.message


def test_files_that_are_no_toml_or_not_there(tmp_path):
    error = _error(tmp_path, "# one\nname = \n")
    assert "is not a TOML file" in error.message and error.place.endswith("small.toml:2")
    assert "recursion" in _error(tmp_path, "a = " + "[" * 5000).message
    with pytest.raises(FlintError, match="No such file") as caught:
        Cluster.load(tmp_path / "none.toml")
    assert caught.value.code == "FL701"


def test_key_lines_of_nested_tables():
    text = 'a = 1\n[b]\nc = 2\n"d.e" = 3\n[[n]]\nx = 1\n[n.k]\ny = 1\n[[n]]\nx = 2\n'
    lines = key_lines(text)
    assert lines[("a",)] == 1
    assert lines[("b", "c")] == 3
    assert lines[("n", 0, "k", "y")] == 8
    assert lines[("n", 1, "x")] == 10
    assert (lines[("n",)], lines[("b", "d.e")]) == (5, 4)


def test_every_number_of_every_preset_has_its_line():
    for name in (n for n in PRESET_NAMES if not Cluster.load(n).base):
        lines = key_lines((PRESETS / f"{name}.toml").read_text("utf-8"))
        assert ("chip", "memory_bytes") in lines
        assert ("network", 1, "latency_ns") in lines


def test_clusters_load_without_jax_or_torch():
    code = (
        "import sys; from flint.cluster.models import Cluster; Cluster.load('v5p');"
        "print([m for m in ('jax', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.stdout.strip() == "[]"
