"""Nsight Systems' exports: processes apart, calls joined to what they launched, nothing written."""

from __future__ import annotations

import gzip
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.tools.measure.profiles import nsight
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.comms import input_bytes
from flint.tools.measure.profiles.formats import read_profiles
from flint.tools.measure.profiles.nsight.ranges import comm_of
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile
from tests.nsys_exports import Export, pid, small_export


def _read(path: Path) -> tuple[Profile, ...]:
    assert nsight.recognizes(path.read_bytes()[:64])
    return nsight.read(path)


def _texts(profile: Profile, numbers: list[int]) -> list[str]:
    return [profile.strings[n] for n in numbers]


def test_each_device_of_a_process_is_a_profile_with_its_own_launches(tmp_path: Path) -> None:
    first, second = _read(small_export().write(tmp_path / "a.sqlite"))
    assert (first.device, first.processors) == ("NVIDIA H100", 132)
    assert (second.device, second.device_memory_bytes) == ("NVIDIA A100", 40 << 30)
    a = first.activities
    assert _texts(first, a.name.tolist()) == ["gemm", "Memcpy HtoD (Pageable -> Device)", "a", "b"]
    assert a.start_ns.tolist() == [0, 600, 1200, 1300]
    assert a.duration_ns.tolist() == [600, 100, 100, 100]
    assert a.num_bytes.tolist() == [0, 4096, 0, 0]
    assert a.kind.tolist() == [ActivityKind.KERNEL, ActivityKind.COPY, 0, 0]
    assert first.origin_ns == 1_790_000_000_000_002_000
    assert _texts(second, second.activities.name.tolist()) == ["other"]
    assert len(second.calls.kind) == 1


def test_launches_graphs_and_waits_are_told_apart(tmp_path: Path) -> None:
    first, _ = _read(small_export().write(tmp_path / "a.sqlite"))
    calls = first.calls
    assert calls.kind.tolist() == [
        CallKind.LAUNCH, CallKind.LAUNCH, CallKind.GRAPH, CallKind.RECORD_EVENT,
        CallKind.STREAM_WAIT, CallKind.WAIT_DEVICE,
    ]  # fmt: skip
    assert first.activities.call.tolist() == [0, 1, 2, 2]
    # stream 9 waits for what stream 7 had been given when the event was recorded: kernel b
    assert (calls.stream[4], calls.waits_for[4]) == (9, 3)
    assert calls.waits_for[5] == 3


def test_ranges_that_pytorch_emits_are_operators_with_sizes(tmp_path: Path) -> None:
    first, _ = _read(small_export().write(tmp_path / "a.sqlite"))
    assert _texts(first, first.operators.name.tolist()) == ["aten::mm"]
    assert first.operators.sequence.tolist() == [12]
    assert first.signatures[first.operators.signature[0]].shapes == ((8, 16), (16, 4))
    assert first.activities.operator.tolist()[0] == 0
    assert _texts(first, first.marks.name.tolist()) == ["step"]


def test_types_of_operators_are_those_that_their_kernels_name(tmp_path: Path) -> None:
    e = Export()
    e.range("aten::linear, seq = 1, sizes = [[8, 16], [4, 16], [4]]", 0, 100)
    e.range("aten::addmm, seq = 1, sizes = [[4], [8, 16], [16, 4], [], []]", 10, 90)
    e.call("cudaLaunchKernel", 20, 30, 1)
    e.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", 100, 600, 1)
    (profile,) = _read(e.write(tmp_path / "a.sqlite"))
    inner = profile.signatures[profile.operators.signature[profile.activities.operator[0]]]
    assert inner.types == (*["c10::BFloat16"] * 3, "", "")
    program = workload_of([profile]).programs[0]
    row = int(np.argmax(program.flops))
    assert program.op[row] == OpClass.MATMUL
    assert program.dims[row].tolist() == [1, 8, 4, 16]


def test_collectives_by_their_range_with_bytes_else_by_their_kernel(tmp_path: Path) -> None:
    e = Export()
    e.range("ncclAllReduce", 0, 100, payload='{"Message size [bytes]": 1024}')
    e.call("cuLaunchKernelEx", 10, 20, 1)
    e.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 50, 90, 1)
    e.call("cuLaunchKernelEx", 110, 120, 2)
    e.kernel("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", 150, 190, 2)
    (profile,) = _read(e.write(tmp_path / "a.sqlite"))
    known = [profile.comms[i] for i in profile.activities.comm.tolist()]
    assert [(c.name, c.in_elements, c.dtype) for c in known] == [
        ("allreduce", 1024, "Byte"),
        ("_reduce_scatter_base", -1, ""),
    ]


def test_sizes_of_ranges_are_what_nccl_writes_of_each_collective() -> None:
    def inputs(name: str) -> int:
        comm = comm_of(name, '{"Message size [bytes]": 1024}')
        assert comm is not None
        return input_bytes(replace(comm, group_size=8))

    names = ("ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclAlltoAll")
    assert [inputs(name) for name in names] == [1024, 1024, 8 * 1024, 0]


def test_older_exports_lack_columns_and_have_names_in_place(tmp_path: Path) -> None:
    e = Export()
    e.add(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=0, end=5, deviceId=0, streamId=7, correlationId=1,
        globalPid=pid(1), demangledName="gemm",
    )  # fmt: skip
    (profile,) = _read(e.write(tmp_path / "a.sqlite", without=("shortName", "graphNodeId")))
    assert _texts(profile, profile.activities.name.tolist()) == ["gemm"]
    assert profile.device == ""


def test_a_process_may_number_devices_in_its_own_way(tmp_path: Path) -> None:
    e = small_export()
    e.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=1)
    first, second = _read(e.write(tmp_path / "a.sqlite"))
    assert (first.device, second.device) == ("NVIDIA A100", "NVIDIA A100")


def test_nothing_is_written_beside_the_file_nor_into_it(tmp_path: Path) -> None:
    path = small_export().write(tmp_path / "a b%20#.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    _read(path)
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_bytes() == before


def test_paths_of_the_user_are_not_kept(tmp_path: Path) -> None:
    e = small_export()
    e.range("load /home/me/weights.bin", 0, 1)
    first, _ = _read(e.write(tmp_path / "a.sqlite"))
    assert not any("/home" in s for s in first.strings)


# What cannot be used --------------------------------------------------------------------------


def _refused(path: Path, code: str) -> str:
    with pytest.raises(FlintError) as caught:
        read_profiles(path)
    assert caught.value.code == code
    return str(caught.value)


def test_an_export_without_anything_of_a_device_is_refused(tmp_path: Path) -> None:
    e = Export()
    e.range("step", 0, 1)
    assert "--trace cuda,nvtx" in _refused(e.write(tmp_path / "a.sqlite"), "FL827")


def test_databases_of_others_are_refused(tmp_path: Path) -> None:
    for table, code in (("songs", "FL826"), ("rocpd_kernel_dispatch", "FL828")):
        connection = sqlite3.connect(tmp_path / table)
        connection.execute(f"CREATE TABLE {table} (id INT)")
        connection.commit()
        connection.close()
        _refused(tmp_path / table, code)


@pytest.mark.parametrize("kept", [100, 3000, 9000])
def test_a_cut_export_is_refused(tmp_path: Path, kept: int) -> None:
    whole = small_export().write(tmp_path / "whole").read_bytes()
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[:kept])
    assert _refused(path, "FL826")


def test_a_packed_export_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite.gz"
    path.write_bytes(gzip.compress(small_export().write(tmp_path / "a.sqlite").read_bytes()))
    assert "unpack it first" in _refused(path, "FL826")


def test_rows_of_wrong_types_are_left_out_and_said(tmp_path: Path) -> None:
    e = small_export()
    e.kernel("never ends", 5, 1, 9)
    e.add("CUPTI_ACTIVITY_KIND_KERNEL", start="soon", end=None, deviceId=0, streamId=7)
    e.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=b"x", end=1, globalTid="me", correlationId=1.5)
    e.add("NVTX_EVENTS", start=1, end=None, eventType=59, globalTid=None, text=7)
    first, _ = _read(e.write(tmp_path / "a.sqlite"))
    assert first.warnings == ("2 rows have impossible times: omitted",)
    assert len(first.activities.name) == 4


def test_a_newer_schema_is_said(tmp_path: Path) -> None:
    e = small_export()
    e.rows["META_DATA_EXPORT"] = [{"name": "EXPORT_SCHEMA_VERSION", "value": "4.0.1"}]
    first, _ = _read(e.write(tmp_path / "a.sqlite"))
    assert first.warnings == ("the export's schema is 4.0.1, newer than 3: it may contain more",)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_a_sentence_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    whole = bytearray(small_export().write(folder / "whole").read_bytes())
    for _ in range(data.draw(st.integers(1, 30))):
        whole[data.draw(st.integers(16, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "a.sqlite"
    path.write_bytes(bytes(whole))
    try:
        nsight.read(path)
    except FlintError as error:
        assert error.code in ("FL805", "FL806", "FL826", "FL827")


@pytest.mark.parametrize(
    ("name", "content", "help"),
    [
        ("a.nsys-rep", b"\x00\x01binary", "nsys export --type sqlite"),
        ("a.pftrace", b"\x0a\x04\x42\x02\x08\x01", "Kineto JSON"),
        ("a.csv", b'"Kind","Agent_Id","Queue_Id"\n', "profile through PyTorch"),
        ("a.json", b'{"rocprofiler-sdk-tool": []}', "profile through PyTorch"),
    ],
)
def test_what_is_not_read_is_named_with_what_to_give(
    tmp_path: Path, name: str, content: bytes, help: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert help in _refused(path, "FL828")
