"""Bad profiles: each is told apart, and nothing else than a FlintError ever comes out."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.tools.measure.profiles.formats import read_profiles
from flint.tools.measure.profiles.kineto import stream
from flint.tools.measure.profiles.kineto.stream import _MOST_CHARACTERS
from flint.tools.measure.profiles.profile import Profile

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.5, "dur": 9.0,
     "args": {"External id": 3, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"],
              "Sequence number": 1, "Concrete Inputs": ["", ""]}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 11.0,
     "dur": 4.0, "args": {"correlation": 5, "External id": 3}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 16.0, "dur": 5.0,
     "args": {"correlation": 5, "device": 0, "stream": 7, "Collective name": "allreduce",
              "Process Group Ranks": "[0, 1]", "Group size": 2, "Process Group Name": "0"}},
    {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 16.0,
     "dur": 5.0, "args": {"correlation": 5, "stream": 7, "device": 0}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1,
     "dur": 90.0, "args": {}},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 3,
     "args": {"Total Allocated": 7, "Device Type": 1}},
]  # fmt: skip
TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "GPU", "totalGlobalMem": 5, "numSms": 2}],
    "distributedInfo": {
        "rank": 0,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
    },
    "baseTimeNanoseconds": 5,
    "traceEvents": EVENTS,
}


def error_of(path: Path) -> FlintError:
    with pytest.raises(FlintError) as raised:
        read_profiles(path)
    return raised.value


def written(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def with_event(at: int, **changed: Any) -> str:
    events = [dict(e) for e in EVENTS]
    events[at].update(changed)
    return json.dumps({**TRACE, "traceEvents": events})


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x00" * 100, b"\x28\xb5\x2f\xfd....", b'{"nodes": []}', b"{}"]
)
def test_no_profile(tmp_path: Path, content: bytes) -> None:
    assert error_of(written(tmp_path, content)).code == "FL801"


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
        assert error_of(path).code == "FL801"


def test_a_trace_of_another_tool(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "v8", "name": "f", "ts": 1, "dur": 2, "pid": 1, "tid": 1}] * 3
    error = error_of(written(tmp_path, json.dumps({"traceEvents": events})))
    assert error.code == "FL802"
    assert "'v8' (3)" in error.message
    assert error_of(written(tmp_path, "[]")).code == "FL802"


def test_a_profile_of_the_host_alone(tmp_path: Path) -> None:
    error = error_of(written(tmp_path, json.dumps(EVENTS[:2])))
    assert error.code == "FL804"
    assert "ProfilerActivity.CUDA" in (error.help or "")


@pytest.mark.parametrize(
    ("category", "name", "activity"),
    [
        ("mtia_runtime", "mtiaLaunch", "MTIA"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "XPU"),
        ("privateuse1_runtime", "launch", "PrivateUse1"),
        ("cpu_op", "npu::npu_fusion_attention", "PrivateUse1"),
        ("cpu_op", "hpu::cast", "HPU"),
        ("cuda_runtime", "hipLaunchKernel", "CUDA"),
    ],
)
def test_advice_is_for_the_accelerator_of_the_program(
    tmp_path: Path, category: str, name: str, activity: str
) -> None:
    error = error_of(written(tmp_path, json.dumps([EVENTS[0], {**EVENTS[1], "cat": category, "name": name}])))  # fmt: skip
    assert error.code == "FL804"
    assert f"ProfilerActivity.{activity}" in (error.help or "")
    assert ("CUDA" in (error.help or "")) == (activity == "CUDA")


def test_kernels_of_another_accelerator_are_kernels(tmp_path: Path) -> None:
    kernel = {**EVENTS[2], "cat": "mtia_ccp_events", "args": {"correlation": 5, "stream": 1}}
    call = {**EVENTS[1], "cat": "mtia_runtime"}
    (profile,) = read_profiles(written(tmp_path, json.dumps([EVENTS[0], call, kernel])))
    assert profile.activities.operator.tolist() == [0]


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.3])
def test_truncated_gzip(tmp_path: Path, kept: float) -> None:
    noise = random.Random(1)
    text = json.dumps({"traceEvents": EVENTS * 500, "x": noise.randbytes(5000).hex()})
    packed = gzip.compress(text.encode())
    error = error_of(written(tmp_path, packed[: int(kept * len(packed))]))
    assert error.code == "FL803"
    assert "bytes could be unpacked" in error.message


def test_gzip_with_a_wrong_bit(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps(TRACE).encode()))
    packed[len(packed) // 2] ^= 0xFF
    assert error_of(written(tmp_path, bytes(packed))).code == "FL803"


def test_truncated_json_says_how_far_it_was_read(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS * 10000})
    cut = len(text) // 2
    error = error_of(written(tmp_path, text[:cut]))
    whole = text[:cut].count('{"ph"') - 1
    assert error.code == "FL803"
    assert f"ends too early after {whole:,} events and about {cut:,} bytes" in error.message


@pytest.mark.parametrize(
    "text", ["[1, 2", '{"traceEvents": [', '{"traceEvents": [{"ph": "X"', "[", "{"]
)
def test_every_end_is_too_early(tmp_path: Path, text: str) -> None:
    error = error_of(written(tmp_path, text))
    assert error.code == "FL803"
    assert "ends too early" in error.message


def test_damaged_json(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS * 10})
    error = error_of(written(tmp_path, text.replace('"kernel"', "kernel", 5)))
    assert error.code == "FL803"
    assert "not JSON any more after 2 events" in error.message
    assert error_of(written(tmp_path, text + "}")).code == "FL803"
    assert error_of(written(tmp_path, "[" * 100_000)).code == "FL803"
    assert error_of(written(tmp_path, '{"traceEvents": [' + "9" * 6000 + "]}")).code == "FL803"


@pytest.mark.parametrize(
    ("at", "changed"),
    [
        (2, {"dur": -3.0}),
        (2, {"dur": float("nan")}),
        (2, {"dur": 1e300}),
        (2, {"ts": float("inf")}),
        (2, {"ts": 1e300}),
        (0, {"ts": 1e300}),
        (0, {"ts": float("nan")}),
        (1, {"dur": -1}),
    ],
)
def test_absurd_numbers(tmp_path: Path, at: int, changed: dict[str, Any]) -> None:
    assert error_of(written(tmp_path, with_event(at, **changed))).code == "FL805"


def test_numbers_as_c_prints_them_are_nothing(tmp_path: Path) -> None:
    text = json.dumps(TRACE).replace(
        '"stream": 7, "Coll', '"x": -nan, "y": inf, "stream": 7, "Coll'
    )
    (profile,) = read_profiles(written(tmp_path, text))
    assert len(profile.activities.name) == 1


def test_too_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flint.tools.measure.profiles.tables.MOST_ROWS", 8)
    error = error_of(written(tmp_path, json.dumps(EVENTS * 10)))
    assert error.code == "FL806"
    assert "trace.json" in error.message


def test_a_value_without_an_end_is_not_read_on_and_on(tmp_path: Path) -> None:
    text = '{"x": "' + "a" * (4 * _MOST_CHARACTERS)
    assert error_of(written(tmp_path, gzip.compress(text.encode(), 1))).code == "FL803"


def test_what_is_not_understood_is_counted(tmp_path: Path) -> None:
    odd: list[Any] = [7, None, "x", {"ph": "X", "cat": "kernel"}, {"ph": "X", "cat": ["a"]}]
    (profile,) = read_profiles(written(tmp_path, json.dumps({"traceEvents": EVENTS + odd})))
    assert any("5 events are not understood" in w for w in profile.warnings)


def test_batches_of_events_are_the_same_as_single_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Borders that are none: in a text, in a list of objects; texts that one parser refuses."""
    odd = [
        {**EVENTS[2], "ts": 16 + n, "name": name, "args": {**EVENTS[2]["args"], "x": [{}, {}, {}]}}
        for n, name in enumerate(['a}, {"ph"', "\ud800", "b\u0001", "}, {", "", '\\"'] * 40)
    ]
    text = json.dumps({"traceEvents": EVENTS + odd}).replace("\\u0001", "\u0001")
    path = written(tmp_path, text)
    found = []
    for characters in (1, 50, 400, 1 << 13, 1 << 30):
        monkeypatch.setattr(stream, "_BATCH_CHARACTERS", characters)
        (profile,) = read_profiles(path)
        names = [profile.strings[n] for n in profile.activities.name]
        found.append((names, profile.activities.start_ns.tolist(), profile.warnings))
    assert len(found[0][0]) == 241
    assert all(f == found[0] for f in found)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([10**30, -1, 1 << 63, 1e300, "[0, 1, ...]", "kernel", "gpu_memcpy", {}, [[]]]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, (dict, list)):
        for key, inner in items:
            found += (
                places(inner, (*path, key)) if isinstance(inner, (dict, list)) else [(*path, key)]
            )
    return found


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_trace_is_a_profile_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    trace = json.loads(json.dumps(TRACE))
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(places(trace)))
        inside = trace
        for key in path[:-1]:
            inside = inside[key]
        if data.draw(st.booleans()):
            inside[path[-1]] = data.draw(VALUES)
        else:
            del inside[path[-1]]
    text = json.dumps(trace).encode()
    if data.draw(st.integers(0, 4)) == 0:
        text = text[: data.draw(st.integers(0, len(text)))]
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_bytes(text)
    with contextlib.suppress(FlintError):
        profiles = read_profiles(path)
        assert all(isinstance(p, Profile) for p in profiles)
