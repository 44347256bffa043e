"""docs/clusters.md: its examples load, its tables are complete, and what it says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from flint.backends.cost.chips.families.gpu.constants import CONSTANTS, NEEDED, Gpu
from flint.backends.cost.chips.families.gpu.constants import constants_note as gpu_note
from flint.backends.cost.chips.families.systolic.constants import Systolic
from flint.backends.cost.chips.families.systolic.constants import constants_note as systolic_note
from flint.backends.cost.collectives.choose import speed_of
from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.models import Chip, Cluster, Network, NetworkKind, Quantity, SourceKind
from flint.errors import FlintError
from flint.ir.mesh import Mesh

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text("utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
NAMES = [re.findall(r'^name = "(.*)"', e, re.MULTILINE)[0] for e in EXAMPLES]
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


def load(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Cluster:
    text = EXAMPLES[NAMES.index(name)]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.toml"
    path.write_text(text, "utf-8")
    return Cluster.load(path)


def test_the_page_has_these_examples() -> None:
    assert NAMES == ["ours", "lab", "pod"]


def test_a_change_of_a_preset(tmp_path: Path) -> None:
    ours, base = load(tmp_path, "ours"), Cluster.load("h100-dgx")
    assert (ours.network[0], ours.chip.memory_bytes) == (base.network[0], base.chip.memory_bytes)
    assert ours.network[1].bandwidth_bytes_per_s.value == 25e9
    assert ours.network[1].latency_ns == base.network[1].latency_ns
    assert ours.chip.gpu is not None and base.chip.gpu is not None
    assert ours.chip.gpu.constants["gemm.efficiency"].value == 0.9
    added = ours.chip.gpu.constants.keys() - base.chip.gpu.constants.keys()
    assert added == {"gemm.efficiency"}


def test_a_whole_file_borrows_constants_and_says_so(tmp_path: Path) -> None:
    chip = load(tmp_path, "lab").chip
    assert "H100-SXM5-80GB" in gpu_note(chip) and chip.name in gpu_note(chip)
    nearest = load(tmp_path, "lab", ('like = "h100-dgx"\n', "")).chip
    assert gpu_note(nearest) == gpu_note(chip)  # 4,096 FLOP per cycle: H100's generation


def test_a_torus_fills_a_pod(tmp_path: Path) -> None:
    pod = load(tmp_path, "pod")
    assert "those of TPU v6e, unscaled" in systolic_note(pod.chip)
    arrays = pod.chip.systolic
    assert arrays is not None
    cells = arrays.cores.value * arrays.arrays.value * arrays.rows.value * arrays.columns.value
    assert pod.chip.peak_flops_per_s["bf16"].value == 2 * cells * arrays.clock_hz.value
    rows = NetworkPlacement(Mesh.parse("data=4,model=4"), pod).table()
    assert [r.tier for r in rows] == ["links (4 of 4x4)"] * 2
    assert f"`{rows[0].tier}`" in PAGE


def test_the_table_of_a_mapping(tmp_path: Path) -> None:
    lab, mesh = load(tmp_path, "lab"), Mesh.parse("data=64,model=4")
    table = NetworkPlacement(mesh, lab).table()
    assert len(table) == 3
    for row in table:
        assert f"| {row.axis} | {row.size} | {row.tier} |" in PAGE
    with pytest.raises(FlintError, match="FL703"):
        NetworkPlacement(mesh, lab, {"data": "rail"})
    assert (
        NetworkPlacement(Mesh.parse("data=16,model=4"), lab, {"data": "rail"}).table()[0].tier
        == "rail"
    )


@pytest.mark.parametrize("model", [Cluster, Chip, Gpu, Systolic, Network, Quantity])
def test_every_key_is_on_the_page(model: type[BaseModel]) -> None:
    assert set(model.model_fields) <= CODE


def test_every_kind_and_constant_is_on_the_page() -> None:
    assert {str(k) for k in (*SourceKind, *NetworkKind)} <= CODE
    softmax = {"softmax.launch_ns", "softmax.memory_efficiency", "softmax.cycles"}
    assert set(NEEDED) - softmax <= CODE  # "the same three of `softmax`"


def test_the_assumed_constants_of_a_network(tmp_path: Path) -> None:
    lab = load(tmp_path, "lab")
    switch, links = speed_of(lab.network[1]), speed_of(lab.network[0])
    nvls = switch.declared
    rows = [
        f"| `a0_ns` | {switch.a0_ns:,.0f} | {links.a0_ns:,.0f} |",
        f"| `c` | {switch.c:,.0f} | {links.c:,.0f} |",
        f"| `efficiency` | {switch.efficiency:g} | {links.efficiency:g} |",
        f"| `own_part` | {switch.own_part:g} | {links.own_part:g} |",
        f"| {nvls['nvls_a0_ns']:,.0f}; {nvls['nvls_efficiency']:g}; {nvls['nvls_from']:g} |",
    ]
    assert [row for row in rows if row not in PAGE] == []
    assert switch.a1_ns == lab.network[1].latency_ns.value
    assert speed_of(lab.network[2]).bandwidth == switch.bandwidth / 4  # oversubscription


def test_what_is_said_of_a_typing_error(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        EXAMPLES[1].replace(
            "bandwidth_bytes_per_s = { value = 300e9", "bandwith_bytes_per_s = { value = 300e9"
        ),
        "utf-8",
    )
    with pytest.raises(FlintError) as caught:
        Cluster.load(path)
    assert str(caught.value).splitlines()[0] in PAGE
    assert caught.value.place is not None
    assert f"  --> {Path(caught.value.place).name}\n" in PAGE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ours", ('"gemm.efficiency" = ', '"gemm.eficiency" = ')),
        ("ours", ('"gemm.efficiency" = ', "gemm.efficiency = ")),
        ("ours", ('"gemm.efficiency" = { value = 0.9', '"gemm.launch_ns" = { value = 900')),
        ("lab", ("bf16 = ", "bfloat16 = ")),
        ("lab", ('like = "h100-dgx"', 'like = "h100-dgxx"')),
        ("ours", ('name = "ib"', 'name = "ibb"')),
        ("lab", ("memory_bytes = { value = 96e9", "memory_bytes = 80e9 # {")),
    ],
)
def test_messages_are_as_the_page_says(tmp_path: Path, name: str, change: tuple[str, str]) -> None:
    with pytest.raises(FlintError) as caught:
        load(tmp_path, name, change)
    assert f"`{caught.value.message.removeprefix(f'{name}.toml: ')}`" in PAGE


def test_the_limits_of_constants_are_on_the_page() -> None:
    shares = [n for n, limit in CONSTANTS.items() if limit.most == 1]
    assert set(shares) <= CODE and "which are other ratios: at most 1" in PAGE
    launches = {limit.least for n, limit in CONSTANTS.items() if n.endswith("launch_ns")}
    efficiencies = {limit.most for n, limit in CONSTANTS.items() if n.endswith("efficiency")}
    assert (launches, efficiencies - {1}) == ({1500}, {0.95})
    assert "at most 0.95" in PAGE and "at least 1,500 ns" in PAGE
