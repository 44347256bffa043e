"""Kineto files against a parser of thirty lines that knows nothing of ours."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flint.tools.measure.profiles.formats import read_profiles
from flint.tools.measure.profiles.profile import Profile

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "kineto"
FILES = sorted(p.name for p in DATA.glob("*.json.gz"))
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")


def events_of(name: str) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress((DATA / name).read_bytes()))["traceEvents"])


@pytest.fixture(scope="module", params=FILES)
def both(request: pytest.FixtureRequest) -> tuple[list[dict[str, Any]], Profile]:
    (profile,) = read_profiles(DATA / request.param)
    return events_of(request.param), profile


Both = tuple[list[dict[str, Any]], Profile]


def test_there_are_nine_files() -> None:
    assert len(FILES) == 9


def test_kernels_their_sums_and_streams(both: Both) -> None:
    events, profile = both
    sums: dict[tuple[str, int], float] = defaultdict(float)
    counts: Counter[tuple[str, int]] = Counter()
    for e in events:
        if e.get("cat") in DEVICE:
            key = (e["name"], e["args"]["stream"])
            sums[key] += e["dur"] * 1000
            counts[key] += 1
    a = profile.activities
    ours: dict[tuple[str, int], float] = defaultdict(float)
    for name, stream, duration in zip(a.name, a.stream, a.duration_ns, strict=True):
        ours[(profile.strings[name], int(stream))] += duration
    assert (
        Counter((profile.strings[n], int(s)) for n, s in zip(a.name, a.stream, strict=True))
        == counts
    )
    assert ours == pytest.approx(sums, rel=1e-9)


def test_launches(both: Both) -> None:
    events, profile = both
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in RUNTIME}
    launched = [
        (calls[e["args"]["correlation"]]["name"], e["name"], e["ts"])
        for e in events
        if e.get("cat") in DEVICE and e["args"]["correlation"] in calls
    ]
    a, c, text = profile.activities, profile.calls, profile.strings
    ours = [(text[c.name[k]], text[n]) for k, n in zip(a.call, a.name, strict=True) if k >= 0]
    assert Counter(ours) == Counter(pair[:2] for pair in launched)
    assert Counter(text[n] for n in c.name) == Counter(
        e["name"] for e in events if e.get("cat") in RUNTIME
    )


def test_operators_of_kernels(both: Both) -> None:
    """The operator that is found by time is the one that the file's ids name."""
    events, profile = both
    names = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    theirs = Counter(
        (e["name"], names[e["args"]["External id"]])
        for e in events
        if e.get("cat") in DEVICE and e["args"].get("External id") in names
    )
    a, o, text = profile.activities, profile.operators, profile.strings
    nccl = {n for n, name in enumerate(text) if name.startswith("nccl:")}  # annotations
    ours = Counter(
        (text[n], text[o.name[o.parent[k] if o.name[k] in nccl else k]])
        for k, n in zip(a.operator, a.name, strict=True)
        if k >= 0
    )
    assert sum((theirs & ours).values()) >= 0.999 * sum(theirs.values())


def test_starts_are_those_of_the_file(both: Both) -> None:
    events, profile = both
    starts = sorted(e["ts"] for e in events if e.get("cat") in DEVICE)
    ours = profile.activities.start_ns
    assert np.diff(starts) * 1000 == pytest.approx(np.diff(ours), abs=1.0)


def test_shapes_of_operators(both: Both) -> None:
    events, profile = both
    theirs = Counter(
        (e["name"], json.dumps(e["args"].get("Input Dims")))
        for e in events
        if e.get("cat") == "cpu_op"
    )
    ours: Counter[tuple[str, str]] = Counter()
    for name, at in zip(profile.operators.name, profile.operators.signature, strict=True):
        if profile.strings[name].startswith(
            "nccl:"
        ):  # an annotation that says what NCCL was asked for
            continue
        dims: list[Any] | None = None
        if at >= 0:
            signature = profile.signatures[at]
            lists = signature.lists or ((),) * len(signature.shapes)
            dims = [listed or shape for shape, listed in zip(signature.shapes, lists, strict=True)]
        ours[(profile.strings[name], json.dumps(dims))] += 1
    assert ours == theirs
