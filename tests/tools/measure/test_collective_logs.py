"""Logs of nccl-tests, rccl-tests and OSU are read whatever their layout, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.op_class import Collective
from flint.tools.measure.calibration.data import read_measurements
from flint.tools.measure.fitting.networks import measured_calls
from flint.tools.measure.measurements import nccl_tests, osu
from flint.tools.measure.measurements.rows import CollectiveTime

LOGS = Path(__file__).parents[2] / "data" / "collective_logs"
REDUCE, GATHER = Collective.ALL_REDUCE, Collective.ALL_GATHER
#: Real logs: rows, collective, ranks and nodes of each run, first and last (input bytes, ns).
REAL = {
    "alps_gh200.log": (50, {(REDUCE, 8, 2)}, (8, 17_930), (134_217_728, 43_293_000)),
    "aws_p5_one_node.log": (32, {(REDUCE, 8, 0)}, (8, 12_900), (17_179_869_184, 62_239_000)),
    "aws_p5_two_nodes.log": (
        6,
        {(REDUCE, 16, 0)},
        (67_108_864, 996_000),
        (2_147_483_648, 9_197_500),
    ),
    "dstack_all_gather.log": (
        22,
        {(GATHER, 16, 0)},
        (524_288, 166_600),
        (536_870_912, 160_505_000),
    ),
    "efa_alltoall.log": (9, {(Collective.ALL_TO_ALL, 16, 2)}, (2048, 106_880), (524_288, 212_760)),
    "efa_p3dn_no_root.log": (3, {(REDUCE, 16, 0)}, (1_048_576, 1_035_300), (4_194_304, 1_140_500)),
    "gcp_a3mega.log": (31, {(REDUCE, 16, 2)}, (8, 135_800), (8_589_934_592, 47_535_000)),
    "milliseconds_2019.log": (
        5,
        {(REDUCE, 2, 2)},
        (1_048_576, 2_059_000),
        (16_777_216, 17_616_000),
    ),
    "nebius_all_reduce.log": (31, {(REDUCE, 16, 0)}, (8, 45_720), (8_589_934_592, 34_448_400)),
    "rccl_mi250x_error_column.log": (8, {(GATHER, 16, 1)}, (4, 33_750), (512, 34_810)),
    "rccl_mi300x.log": (
        29,
        {(REDUCE, 8, 1), (REDUCE, 16, 2)},
        (8, 19_280),
        (17_179_869_184, 90_115_000),
    ),
    "sendrecv_a40.log": (6, {(Collective.NONE, 2, 2)}, (256, 34_240), (8192, 31_760)),
    "slurm_label_all_gather.log": (6, {(GATHER, 32, 4)}, (2048, 107_500), (65_536, 70_248_000)),
    "vega_one_row.log": (1, {(GATHER, 4, 1)}, (8_388_608, 13_058_000), (8_388_608, 13_058_000)),
}
HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
DEVICES = "#  Rank  0 Pid 1 on a device 0\n#  Rank  1 Pid 1 on a device 1\n"


def rows_of(text: str, name: str = "all_reduce.log") -> tuple[CollectiveTime, ...]:
    return nccl_tests.read(text, name).collectives


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_logs(name: str) -> None:
    count, runs, first, last = REAL[name]
    found = read_measurements(LOGS / name).collectives
    assert len(found) == count
    assert {(r.collective, r.ranks, r.nodes) for r in found} == runs
    ends = [(r.comm_bytes, pytest.approx(r.measured_ns)) for r in (found[0], found[-1])]
    assert ends == [first, last]


def test_all_real_logs_are_tested() -> None:
    assert {p.name for p in LOGS.glob("*.log")} == set(REAL) and len(REAL) >= 10


def test_bandwidths_of_real_logs_follow_from_what_was_read() -> None:
    """busbw of an all-reduce is 2 (n - 1) / n of bytes by time: ranks and times are the right ones."""
    for name in ("alps_gh200.log", "gcp_a3mega.log", "rccl_mi300x.log"):
        text = (LOGS / name).read_text("utf-8")
        printed = [float(line.split()[7]) for line in text.splitlines() if " sum " in line]
        for row, busbw in zip(read_measurements(LOGS / name).collectives, printed, strict=True):
            ours = row.comm_bytes / row.measured_ns * 2 * (row.ranks - 1) / row.ranks
            assert ours == pytest.approx(busbw, rel=0.01, abs=0.006)


def test_hosts_are_counted_and_not_kept() -> None:
    assert "host0" not in repr(read_measurements(LOGS / "gcp_a3mega.log"))


def test_wrong_results_and_empty_rows_are_left_out_and_counted() -> None:
    text = (
        DEVICES
        + HEADER
        + (
            " 0 0 float sum -1 6.3 0.00 0.00 0\n"
            " 8 2 float sum -1 6.3 0.00 0.00 4\n"
            " 16 4 float sum -1 0.00 0.00 0.00 0\n"
            " 32 8 float sum -1 nan 0.00 0.00 0\n"
            " 64 16 float sum -1 7.5 0.01 0.01 N/A\n"
        )
    )
    found = nccl_tests.read(text, "all_reduce.log")
    assert [(r.comm_bytes, r.measured_ns) for r in found.collectives] == [(64, 7500)]
    assert sum(found.left_out.values()) == 4 and "with wrong results" in found.left_out


@pytest.mark.parametrize(
    ("text", "name", "code"),
    [
        (HEADER + " 64 16 float sum -1 7.5 0.01 0.01 0\n", "x.log", "FL855"),
        (HEADER + " 64 16 float sum -1 7.5 0.01 0.01 0\n", "all_reduce.log", "FL842"),
        (
            DEVICES + HEADER + " 64000000 16000000 float sum -1 7.5 90.0 90.0 0\n",
            "all_reduce.log",
            "FL845",
        ),
        (DEVICES + HEADER + " 64 16 float sum -1 7.5 0.01 0.01 3\n", "all_reduce.log", "FL848"),
        (DEVICES + HEADER + " 64 16 float sum 0 7.5 0.01 0.01 0\n", "reduce_perf.log", "FL848"),
    ],
)
def test_what_is_missing_is_said(text: str, name: str, code: str) -> None:
    with pytest.raises(FlintError) as caught:
        nccl_tests.read(text, name)
    assert caught.value.code == code and name in caught.value.message and caught.value.help


def test_one_process_for_each_rank_is_no_collective() -> None:
    """Without MPI every process tests alone, and says busbw 0."""
    text = "#  Rank  0 Pid 1 on a device 0\n" + HEADER + " 64 16 float sum -1 7.5 0.01 0.00 0\n"
    with pytest.raises(FlintError, match="1 of one rank"):
        rows_of(text)


def test_json_of_newer_versions(tmp_path: Path) -> None:
    devices = [{"rank": r, "group": 0, "hostname": f"h{r // 2}"} for r in range(4)]
    body = {"time": 20.5, "alg_bw": 51.2, "bus_bw": 38.4, "nwrong": None}
    result = {"size": 1 << 20, "count": 1, "type": "bfloat16", "redop": "none", "root": "-1"}
    document = {
        "version": 3,
        "args": ["/opt/build/all_gather_perf_mpi", "-b", "8"],
        "env": ["USER=somebody"],
        "config": {"devices": devices},
        "results": [{**result, "out_of_place": body, "in_place": body}],
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document), "utf-8")
    found = read_measurements(path)
    (row,) = found.collectives
    assert (row.collective, row.ranks, row.nodes) == (GATHER, 4, 2)
    assert (row.comm_bytes, row.dtype, row.measured_ns) == (1 << 18, "bf16", 20_500)
    assert "somebody" not in repr(found) and "h1" not in repr(found)


OSU = """$ mpirun -np 16 ./osu_allreduce -d cuda
# OSU MPI-CUDA Allreduce Latency Test v7.3
# Size       Avg Latency(us)
4                      53.34
1048576               120.00
$ mpirun -np 2 ./osu_bw -d cuda D D
# OSU MPI-CUDA Bandwidth Test v7.2
# Size      Bandwidth (MB/s)
1                       1.01
1048576             20971.52
# OSU MPI-CUDA Latency Test v7.2
# Size          Latency (us)
8                       5.50
"""


def test_osu(tmp_path: Path) -> None:
    path = tmp_path / "osu.txt"
    path.write_text(OSU, "utf-8")
    found = read_measurements(path)
    assert found.format == osu.FORMAT
    times = [(r.collective, r.ranks, r.comm_bytes, r.measured_ns) for r in found.collectives]
    assert times == [
        (REDUCE, 16, 4, 53_340),
        (REDUCE, 16, 1 << 20, 120_000),
        (Collective.NONE, 2, 1 << 20, pytest.approx(50_000)),
        (Collective.NONE, 2, 8, 5_500),
    ]
    assert found.left_out == {"of bandwidths of many small messages at once": 1}
    with pytest.raises(FlintError, match="FL842"):
        osu.read(OSU.split("\n", 1)[1], "osu.txt")


@pytest.mark.parametrize(
    ("command", "members"),
    [
        ("mpiexec -n 16 -ppn 8", (16, 2)),
        ("mpirun -np 16 -N 8", (16, 2)),
        ("srun -N 4 -n 16", (16, 4)),
        ("srun --nodes=4 --ntasks-per-node=8", (32, 4)),
        ("mpirun -np 8", (8, 0)),
    ],
)
def test_launchers_say_ranks_and_nodes(command: str, members: tuple[int, int]) -> None:
    text = f"$ {command} ./osu_allreduce\n# OSU MPI-CUDA Allreduce Latency Test v7.3\n8 5.0\n"
    (row,) = osu.read(text, "osu.txt").collectives
    assert (row.ranks, row.nodes) == members


@pytest.mark.parametrize(
    ("command", "tier"), [("srun -N 2 -n 2", 1), ("srun -N 1 -n 2", 0), ("mpirun -np 2", 0)]
)
@pytest.mark.parametrize(("test", "row"), [("Bandwidth", "1048576 24000"), ("Latency", "8 5.5")])
def test_messages_between_nodes_are_not_of_the_tier_inside(
    command: str, tier: int, test: str, row: str
) -> None:
    text = f"$ {command} ./osu_bw -d cuda D D\n# OSU MPI-CUDA {test} Test v7.3\n{row}\n"
    found = osu.read(text, "osu.txt")
    assert list(measured_calls(found.collectives, Cluster.load("h100-dgx"))[0]) == [tier]
    assert bool(found.notes) == ("mpirun" in command)


def test_an_osu_all_to_all_sends_its_size_to_each_peer() -> None:
    title = "# OSU MPI-CUDA All-to-All Personalized Exchange Latency Test v7.3"
    (row,) = osu.read(f"$ mpirun -np 8 ./osu_alltoall\n{title}\n1024 5.0\n", "x").collectives
    assert (row.collective, row.comm_bytes, row.ranks) == (Collective.ALL_TO_ALL, 8 * 1024, 8)


@pytest.mark.parametrize("gpus", ["-t 8 -g 1", "-g 8", "-g16", "--ngpus 8", "--nthreads=8", ""])
def test_ranks_are_those_of_bus_bandwidths_where_processes_have_several_gpus(gpus: str) -> None:
    row = " 134217728 33554432 float sum -1 1000.0 134.22 251.66 0\n"
    (found,) = rows_of(f"mpirun -np 2 ./build/all_reduce_perf {gpus}\n" + HEADER + row)
    assert found.ranks == 16


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (nccl_tests.read, osu.read):
        try:
            assert len(read(text, "x.log")) > 0
        except FlintError as error:
            assert error.code.startswith("FL84") or error.code in ("FL854", "FL855")


LINES = st.sampled_from(
    [
        *HEADER.splitlines(),
        *DEVICES.splitlines(),
        "# nThread 1 nGpus 2 minBytes 8",
        "[1,0]<stdout>:",
    ]
)
TOKENS = st.sampled_from(
    [
        "8",
        "-1",
        "float",
        "sum",
        "none",
        "1e9",
        "nan",
        "inf",
        "N/A",
        "0.00",
        "9" * 30,
        "-0",
        "half",
        "7.5",
    ]
)
ROWS = st.lists(TOKENS, min_size=4, max_size=14).map(lambda t: "8 2 float " + " ".join(t))


@given(st.lists(LINES | ROWS, max_size=12).map("\n".join), st.sampled_from(["all_gather.log", "x"]))
def test_any_mixture_of_lines_is_read_or_refused(text: str, name: str) -> None:
    try:
        assert all(r.measured_ns > 0 for r in rows_of(text, name))
    except FlintError as error:
        assert error.code.startswith("FL84") or error.code in ("FL854", "FL855")
