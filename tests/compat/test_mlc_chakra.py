"""The readers of PyPI's mlc-chakra read what Flint writes, in the same process as Flint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import read, write
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program

et_def = pytest.importorskip(
    "chakra.schema.protobuf.et_def_pb2",
    reason="mlc-chakra is not installed (pip install --no-deps mlc-chakra)",
)
protolib = pytest.importorskip("chakra.src.third_party.utils.protolib")
jsonizer = pytest.importorskip("chakra.src.jsonizer.jsonizer")


@pytest.fixture(params=["names", "dims"])
def traces(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    write(Workload.single(layered_program()), tmp_path / "out", groups=request.param)
    return sorted((tmp_path / "out").glob("*.et"))


def test_nodes_are_the_same(traces: list[Path]) -> None:
    assert len(traces) == 8
    for path in traces:
        ours = read(path)
        file = protolib.openFileRd(str(path))
        metadata, nodes = et_def.GlobalMetadata(), []
        assert protolib.decodeMessage(file, metadata)
        while protolib.decodeMessage(file, node := et_def.Node()):
            nodes.append(node)
        file.close()
        assert metadata.version == ours.version
        assert [(n.id, n.name, n.type, tuple(n.data_deps)) for n in nodes] == [
            (n.id, n.name, n.type, n.data_deps) for n in ours.nodes
        ]
        for theirs, node in zip(nodes, ours.nodes, strict=True):
            assert {a.name: value_of(a) for a in theirs.attr} == node.attributes


def value_of(attribute: Any) -> tuple[str, Any]:
    kind = attribute.WhichOneof("value")
    value = getattr(attribute, kind)
    return kind, tuple(value.values) if kind.endswith("_list") else value


def test_jsonizer_reads_every_node(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trace.json"
    arguments = ["jsonizer", f"--input_filename={traces[3]}", f"--output_filename={out}"]
    monkeypatch.setattr("sys.argv", arguments)
    jsonizer.main()
    decoder, text, documents = json.JSONDecoder(), out.read_text(), []
    at = 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        documents.append(document)
    metadata, *nodes = documents
    assert metadata["version"] == "1.0.0"
    assert [int(n.get("id", 0)) for n in nodes] == [n.id for n in read(traces[3]).nodes]
    assert nodes[1]["type"] == "COMM_COLL_NODE"
