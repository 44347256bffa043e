"""Tables of timings are read by their columns' names; units are never guessed."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.ir.op_class import Collective, OpClass
from flint.tools.measure.calibration.data import read_measurements
from flint.tools.measure.measurements import aiconfigurator, tables, torch_benchmark
from flint.tools.measure.measurements.rows import KernelTime, Measurements


def read(tmp_path: Path, text: str | bytes, name: str = "data.csv") -> Measurements:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_measurements(path)


def code_of(tmp_path: Path, text: str | bytes, name: str = "data.csv") -> str:
    with pytest.raises(FlintError) as caught:
        read(tmp_path, text, name)
    assert name in caught.value.message
    return caught.value.code


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("time_us", "12.5"),
        ("latency_ms", "0.0125"),
        ("median_ns", "12500"),
        ("Duration (us)", "12.5"),
        ("tflops", str(2 * 64 * 32 * 16 / 12500e-9 / 1e12)),
    ],
)
def test_products(tmp_path: Path, column: str, cell: str) -> None:
    (row,) = read(tmp_path, f"M, N, K, dtype, {column}\n64,32,16,torch.bfloat16,{cell}\n").kernels
    assert row.measured_ns == pytest.approx(12_500)
    assert (row.op, row.dims, row.dtype) == (OpClass.MATMUL, (1, 64, 32, 16), "bf16")
    assert (row.flops, row.read_bytes, row.written_bytes) == (65_536, 2 * (1024 + 512), 2 * 2048)


def test_attention_and_rows_and_elements(tmp_path: Path) -> None:
    text = """# made by hand
kind;dtype;batch;heads;kv_heads;queries;keys;head_dim;causal;rows;columns;elements;reads;time_us
attention;bf16;2;8;2;1;128;64;0;;;;;5
attention_backward;bf16;1;8;;128;128;64;true;;;;;50
softmax;f32;;;;;;;;16;32;;;4
layer_norm;f32;;;;;;;;16;32;;;4
sum;f32;;;;;;;;16;32;;;4
add;f16;;;;;;;;;;1000;2;3
copy;f16;;;;;;;;;;1000;;3
"""
    rows = read(tmp_path, text).kernels
    assert [r.op.name for r in rows] == [
        *("ATTENTION", "ATTENTION_BACKWARD", "SOFTMAX", "NORM", "REDUCE", "ADD", "COPY")
    ]
    decode, backward, softmax, _, total, add, copy = rows
    assert decode.dims == (16, 1, 128, 64) and not decode.causal
    assert decode.read_bytes == 2 * (2 * 8 * 64 + 2 * 2 * 2 * 128 * 64)
    assert backward.causal and backward.dims == (8, 128, 128, 64)
    assert (softmax.read_bytes, softmax.written_bytes, total.written_bytes) == (2048, 2048, 64)
    assert (add.read_bytes, add.arrays, copy.read_bytes) == (4000, 3, 2000)


def test_attention_says_which_pass_and_mask_it_is(tmp_path: Path) -> None:
    text = """kind,batch,heads,queries,keys,head_dim,dtype,causal,compile_time_us,time_us
attention_bwd,1,8,64,64,64,bf16,1.0,9000,100
attention_fwd,1,8,64,64,64,bf16,0.0,9000,100
attention_varlen,1,8,64,64,64,bf16,0,9000,100
attention,1,8,64,64,64,bf16,perhaps,9000,100
"""
    found = read(tmp_path, text)
    assert [(r.op, r.causal, r.measured_ns) for r in found.kernels] == [
        (OpClass.ATTENTION_BACKWARD, True, 100_000),
        (OpClass.ATTENTION, False, 100_000),
    ]
    assert "without a yes or no for causal" in found.left_out and len(found.left_out) == 2


def test_collectives(tmp_path: Path) -> None:
    text = "collective,bytes,ranks,nodes,time_us\nall_reduce,1024,8,1,20\nsendrecv,64,2,2,9\nnone,1,2,1,1\n"
    found = read(tmp_path, text)
    first, second = found.collectives
    assert (first.collective, first.comm_bytes, first.ranks, first.nodes) == (
        *(Collective.ALL_REDUCE, 1024, 8, 1),
    )
    assert second.collective is Collective.NONE and sum(found.left_out.values()) == 1


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    text = """m,n,k,dtype,time_us
64,64,64,bf16,1
64,64,64,bf16,0
64,64,64,bf16,nan
64,64,64,bf16,
64,64,64,int4x,1
64,64,x,bf16,1
64,64,6.5,bf16,1
64,64,64,bf16
1e17,64,64,bf16,1
0,64,64,bf16,1
"""
    found = read(tmp_path, text)
    assert len(found) == 1
    assert sum(found.left_out.values()) == 9
    assert "with a time of 0" in found.left_out and "without a number for k" in found.left_out


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("m,n,k,dtype,time\n1,1,1,bf16,1\n", "FL843"),
        ("m,n,k,dtype\n1,1,1,bf16\n", "FL843"),
        ("m,n,k,time_us\n1,1,1,1\n", "FL844"),
        ("kind,dtype,time_us\nsoftmax,f32,1\n", "FL844"),
        ("m,n,k,dtype,time_us,time_ms\n1,1,1,bf16,1,1\n", "FL845"),
        ("m,n,k,dtype,compile_time_us,run_time_us\n1,1,1,bf16,9,1\n", "FL845"),
        ("m,n,k,dtype,time_us\n", "FL848"),
        ("m,n,k,dtype,time_us\n1,1,1,bf16,0\n", "FL848"),
        ("a line\nand another\n", "FL854"),
        ("", "FL854"),
        (b"\x00\x01\x02", "FL854"),
        (b"\x1f\x8bnot gzip", "FL854"),
        (b"PK\x03\x04 a file of torch.save", "FL846"),
        (pickle.dumps({"times": [1.0]}), "FL846"),
        ('{"8": {"BLOCK_SIZE_M": 16, "num_warps": 4}}', "FL848"),
        ('{"a": 1}', "FL854"),
        ('{"a": ', "FL854"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str | bytes, code: str) -> None:
    assert code_of(tmp_path, text) == code


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(FlintError, match="FL854"):
            read_measurements(path)


AIC = "framework,version,device,op_name,kernel_source,{},latency\nTRT,1,H100,{},cublas,{}\n"


def test_aiconfigurator(tmp_path: Path) -> None:
    text = AIC.format("gemm_dtype,m,n,k", "gemm", "bfloat16,4,8,16,0.5")
    (row,) = read(tmp_path, text).kernels
    assert (row.dims, row.measured_ns) == ((1, 4, 8, 16), 500_000)
    columns = "batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,step,window_size"
    text = AIC.format(columns, "generation_attention", "2,1,8,2,64,bfloat16,99,0,0.1")
    (decode,) = read(tmp_path, text).kernels
    assert decode.dims == (16, 1, 100, 64) and not decode.causal
    text = AIC.format("nccl_dtype,num_gpus,message_size", "all_gather", "half,8,1024,0.02")
    (call,) = read(tmp_path, text).collectives
    assert (call.collective, call.comm_bytes, call.ranks) == (Collective.ALL_GATHER, 256, 8)
    assert code_of(tmp_path, AIC.format("x", "conv", "1,2")) == "FL848"


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert code_of(tmp_path, b"PAR1....PAR1", "gemm.parquet") == "FL847"


def test_parquet(tmp_path: Path) -> None:
    """A table as pandas writes it is read as the same table in CSV is; a broken one is an error."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"framework": ["TRT"] * 2, "version": ["1"] * 2, "device": ["H100"] * 2}
    columns |= {"op_name": ["gemm"] * 2, "kernel_source": ["cublas"] * 2}
    columns |= {"gemm_dtype": ["bfloat16"] * 2, "m": [4, 5], "n": [8, 8], "k": [16, 16]}
    table = arrow.table({**columns, "latency": [0.5, 0.25]})
    parquet.write_table(table, tmp_path / "gemm.parquet")
    found = read_measurements(tmp_path / "gemm.parquet")
    assert [(r.dims, r.measured_ns) for r in found.kernels] == [
        *[((1, 4, 8, 16), 500_000), ((1, 5, 8, 16), 250_000)]
    ]
    data = (tmp_path / "gemm.parquet").read_bytes()
    assert code_of(tmp_path, data[:-20] + data[-8:], "broken.parquet") == "FL854"
    parquet.write_table(arrow.table({"x": [1]}), tmp_path / "other.parquet")
    assert code_of(tmp_path, (tmp_path / "other.parquet").read_bytes(), "o.parquet") == "FL854"


COMPARE = """[------------------ products ------------------]
                                    |  gemm  |  softmax
1 threads: ------------------------------------
      m=64 n=64 k=64 dtype=bf16     |  10.5  |
      rows=16 columns=32 dtype=f32  |        |   4.25
      without sizes                 |  1     |   2

Times are in microseconds (us).
"""


def test_torch_benchmark(tmp_path: Path) -> None:
    found = read(tmp_path, COMPARE, "compare.txt")
    assert found.format == torch_benchmark.FORMAT
    assert [(r.op.name, r.measured_ns) for r in found.kernels] == [
        *[("MATMUL", 10_500), ("SOFTMAX", 4_250)]
    ]
    later = COMPARE.replace("microseconds (us)", "milliseconds (ms)")
    both = read(tmp_path, COMPARE + later + COMPARE.split("\nTimes")[0], "appended.txt")
    assert [r.measured_ns for r in both.kernels] == [10_500, 4_250, 10_500_000, 4_250_000]
    assert both.left_out["of a table without its unit (Times are in ...)"] == 4
    spec = {"label": "gemm", "sub_label": "m=8 n=8 k=8 dtype=f32", "description": "torch"}
    one = {"number_per_run": 10, "raw_times": [2e-5, 1e-5, 3e-5], "task_spec": spec}
    (row,) = read(tmp_path, json.dumps([one]), "m.json").kernels
    assert (row.dims, row.measured_ns) == ((1, 8, 8, 8), pytest.approx(2000))


def test_one_kernel_is_what_its_numbers_say() -> None:
    row = KernelTime(OpClass.COPY, (0, 0, 0, 0), "f32", 1.0, 0, 4, 4, 1, 2)
    assert row.count == 1 and not row.causal


CELLS = st.sampled_from(
    ["m", "n", "k", "dtype", "time_us", "kind", "gemm", "bf16", "1", "", "nan", "-1", "1e400", '"']
)


@given(
    st.lists(st.lists(CELLS, max_size=6).map(",".join), max_size=6).map("\n".join)
    | st.text(max_size=200)
)
def test_any_text_is_a_table_or_refused(text: str) -> None:
    for parse in (tables.read, aiconfigurator.read_csv, torch_benchmark.read):
        try:
            assert len(parse(text, "x.csv")) > 0
        except FlintError as error:
            assert error.code.startswith("FL84") or error.code in ("FL854", "FL855")
