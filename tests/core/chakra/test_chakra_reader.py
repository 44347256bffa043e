"""Reading is strict: what is not a whole trace is an error that says where it breaks."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from flint.backends.chakra import read
from flint.backends.chakra.schema import NodeType
from flint.errors import FlintError
from tests.chakra_traces import coll, comp, send, trace_bytes

NODES = [comp(5), coll(7, "2", (5,)), send(8, 0, 300, (5, 7))]


def put(folder: Path, data: bytes) -> Path:
    path = folder / "t.0.et"
    path.write_bytes(data)
    return path


def test_reads_what_protobuf_wrote(tmp_path: Path) -> None:
    trace = read(put(tmp_path, trace_bytes(NODES)))
    assert trace.version == "1.0.0"
    assert [(n.id, n.type, n.data_deps) for n in trace.nodes] == [
        (5, NodeType.COMP, ()),
        (7, NodeType.COMM_COLL, (5,)),
        (8, NodeType.COMM_SEND, (5, 7)),
    ]
    assert trace.nodes[2].attributes["comm_dst"] == ("int32_val", 300)


def test_reads_gzip(tmp_path: Path) -> None:
    plain = read(put(tmp_path, trace_bytes(NODES)))
    assert read(put(tmp_path, gzip.compress(trace_bytes(NODES)))) == plain


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    """Except between records, where a shorter trace is as whole as a longer one."""
    data = trace_bytes(NODES)
    whole = {len(trace_bytes(NODES[:n])) for n in range(4)}
    for size in range(len(data)):
        path = put(tmp_path, data[:size])
        if size in whole:
            read(path)
            continue
        with pytest.raises(FlintError) as caught:
            read(path)
        assert caught.value.code == "FL603"
        assert str(path) in caught.value.message and "byte" in caught.value.message


def test_truncated_gzip(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        read(put(tmp_path, gzip.compress(trace_bytes(NODES))[:-9]))
    assert caught.value.code == "FL603"


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(seed: int, tmp_path: Path) -> None:
    data = np.random.default_rng(seed).bytes(400)
    with pytest.raises(FlintError) as caught:
        read(put(tmp_path, data))
    assert caught.value.code == "FL603"


def test_offset_of_the_broken_record(tmp_path: Path) -> None:
    good = trace_bytes(NODES[:1])
    with pytest.raises(FlintError) as caught:
        read(put(tmp_path, good + b"\x05ab"))
    assert f"at byte {len(good)} a record of 5 bytes lacks its last 3" in caught.value.message


def test_node_in_the_place_of_metadata(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        read(put(tmp_path, trace_bytes(NODES, metadata=False)))
    assert caught.value.code == "FL604"


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        read(tmp_path / "t.0.et")
    assert caught.value.code == "FL602"
