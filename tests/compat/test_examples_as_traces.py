"""Every example's traces pass `check`, and mlc-chakra's reader sees the nodes that Flint wrote."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flint.backends.chakra import check, read

pytest.importorskip("jax", reason="captures JAX programs")

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "llama_jax.py --mesh 4x2 --set num_layers=2",
    "llama_jax.py --mesh 4x2 --set num_layers=2 --set parallel=fsdp+tp+sp --groups dims --link",
    "llama_jax.py --mesh 2x4 --set num_layers=2 --granularity kernel --tensor-size output",
    "mixtral_jax.py --mesh 4x2 --set num_layers=2",
    "ring_attention_jax.py --mesh 2x4",
    "spmd_pipeline_jax.py --mesh 4x2 --set num_layers=8 --set seq=256 --set microbatches=3",
    "resnet50_jax.py --mesh 4x2 --set spatial=true",
    "decode_jax.py --mesh 2x4 --set model=8b --set num_layers=2 --set tokens=3",
)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_example(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flint.cli import app

    monkeypatch.chdir(ROOT / "examples")
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["capture", "-q", "-o", str(out), *shlex.split(command)])
    assert result.exit_code == 0, result.output
    report = check(out)
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
    assert (report.ranks, report.nodes > 100) == (8, True)
    et_def = pytest.importorskip(
        "chakra.schema.protobuf.et_def_pb2",
        reason="mlc-chakra is not installed (pip install --no-deps mlc-chakra)",
    )
    for path in sorted(out.glob("*.et"))[::3]:
        assert theirs(et_def, path) == [(n.id, n.name, n.data_deps) for n in read(path).nodes]


def theirs(et_def: Any, path: Path) -> list[tuple[int, str, tuple[int, ...]]]:
    """Nodes as mlc-chakra reads them."""
    protolib = pytest.importorskip("chakra.src.third_party.utils.protolib")
    file, nodes = protolib.openFileRd(str(path)), []
    assert protolib.decodeMessage(file, et_def.GlobalMetadata())
    while protolib.decodeMessage(file, node := et_def.Node()):
        nodes.append((node.id, node.name, tuple(node.data_deps)))
    file.close()
    return nodes
