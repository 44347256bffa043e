"""Whole compilers in the place of a partitioner, without their plugins: what is asked and answered."""

from __future__ import annotations

import importlib.metadata
import io
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.notes import compiler_notes
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.made_by import CompiledBy, CompilerMemory
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.passes.compilers import cache, plugins, process
from flint.passes.compilers.buffers import split_dump
from flint.passes.compilers.gpu_targets import GPU_TARGETS
from flint.passes.compilers.target import find_target
from flint.passes.compilers.tpu_targets import TPU_TARGETS
from flint.steps.lowering import Lowering

# what is asked for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiler", "chip", "name"),
    [
        ("xla-gpu", "", "h100"),
        ("xla-gpu", "h100-dgx", "h100"),
        ("xla-gpu", "a100-40-dgx", "a100-40"),
        ("xla-gpu", "A100-SXM4-80GB", "a100"),
        ("xla-gpu", "gb200-nvl72", "gb200"),
        ("xla-gpu", "mi300x", "mi300x"),
        ("xla-gpu", "MI355X-288GB", "mi355x"),
        ("xla-tpu", "", "v5p"),
        ("xla-tpu", "TPU v6e", "v6e"),
    ],
)
def test_a_chip_is_found_by_its_name_or_a_clusters(compiler: str, chip: str, name: str) -> None:
    assert find_target(compiler, chip).name == name


def test_a_clusters_file_stands_for_its_chip(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text('base = "h200-dgx"\nname = "ours"\ntitle = "Ours"\n')
    assert find_target("xla-gpu", str(file)).name == "h200"


@pytest.mark.parametrize(
    ("compiler", "chip", "said"),
    [
        ("xla-gpu", "h1000", "did you mean 'h100'"),
        ("xla-gpu", "v5p", "--compiler xla-tpu knows it"),
        ("xla-tpu", "h100-dgx", "--compiler xla-gpu knows it"),
        ("xla-tpu", "mi300x", "--compiler xla-gpu knows it"),
        ("xla-gpu", "mi250", "choose one of"),
        ("xla-gpu", "H100-PCIe-80GB", "choose one of"),
        ("xla-gpu", "h100-nvl", "choose one of"),
    ],
)
def test_a_chip_that_is_not_described_is_an_error(compiler: str, chip: str, said: str) -> None:
    with pytest.raises(FlintError, match="FL413") as caught:
        find_target(compiler, chip)
    assert said in str(caught.value)


def test_compilers_are_named() -> None:
    with pytest.raises(FlintError, match="FL410"):
        Lowering(compiler="xla-gpus")
    assert Lowering(compiler="xla-tpu-cycles").family == "xla-tpu"


GPUS = "a100-40-dgx a100-80-dgx h100-dgx h200-dgx b200-dgx mi300x mi325x mi355x"


@pytest.mark.parametrize("preset", GPUS.split())
def test_descriptions_of_gpus_are_those_of_the_presets(preset: str) -> None:
    """Memory of the datasheet is decimal, and drivers keep some: 12 % between."""
    target, chip = GPU_TARGETS[find_target("xla-gpu", preset).name], load_cluster(preset).chip
    assert target.multiprocessors == chip.family.sms.value  # type: ignore[attr-defined]
    assert target.bandwidth_bytes_per_s == pytest.approx(
        chip.memory_bandwidth_bytes_per_s.value, rel=0.05
    )
    assert target.memory_bytes == pytest.approx(chip.memory_bytes.value, rel=0.12)
    assert f"core_count: {target.multiprocessors}" in target.text()


@pytest.mark.parametrize("preset", ["v4", "v5e", "v5p", "v6e"])
def test_descriptions_of_tpus_are_those_of_the_presets(preset: str) -> None:
    assert TPU_TARGETS[preset].memory_bytes == load_cluster(preset).chip.memory_bytes.value


@given(st.sampled_from(sorted(TPU_TARGETS)), st.integers(1, 9000))
def test_a_slice_has_as_many_chips_as_the_mesh_and_fits_the_torus(name: str, devices: int) -> None:
    target = TPU_TARGETS[name]
    try:
        found = target.slice_of(devices)
    except FlintError as error:
        assert error.code == "FL414"
        return
    sides = [int(n) for n in str(found).split("x")]
    chips = max(devices // target.devices_per_chip, 1)
    assert math.prod(sides) == chips
    assert all(n <= m for n, m in zip(sides, target.torus, strict=True))
    hosts = found.chips_per_host_bounds or (2, 2, 1)
    assert all(n % h == 0 for n, h in zip(sides, hosts, strict=False))


@pytest.mark.parametrize(
    ("chip", "devices", "torus"),
    [("v5p", 4, "2x2x1"), ("v5p", 8, "2x2x2"), ("v5p", 512, "8x8x8"), ("v5e", 256, "16x16"),
     ("v7", 8, "2x2x1"), ("v4", 32, "2x4x4")],
)  # fmt: skip
def test_slices_are_those_that_google_names(chip: str, devices: int, torus: str) -> None:
    assert str(TPU_TARGETS[chip].slice_of(devices)) == torus


@pytest.mark.parametrize(("chip", "devices"), [("v5e", 512), ("v5p", 9001), ("v7", 7), ("v6e", 17)])
def test_a_mesh_that_no_slice_holds_is_an_error(chip: str, devices: int) -> None:
    with pytest.raises(FlintError, match="FL414"):
        TPU_TARGETS[chip].slice_of(devices)


# the installation ---------------------------------------------------------------------------------


def _installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(plugins, "_importable", lambda module: True)
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda package: ['libtpu==0.0.42.*; extra == "tpu"']
    )


@pytest.mark.parametrize(
    ("platform", "package", "extra"),
    [("cuda", "jax-cuda12", "xla-gpu"), ("rocm", "jax-rocm7", "xla-rocm")],
)
def test_a_plugin_that_is_missing_or_of_another_version_is_an_error(
    monkeypatch: pytest.MonkeyPatch, platform: str, package: str, extra: str
) -> None:
    jax = {"jax": "0.10.2", "jaxlib": "0.10.2"}
    _installed(monkeypatch, jax)
    with pytest.raises(FlintError, match=f"FL411.*{package}-plugin") as caught:
        plugins.installed(platform)
    assert caught.value.help == f'pip install "flint-ir[{extra}]"'
    _installed(monkeypatch, {**jax, f"{package}-plugin": "0.10.2"})
    with pytest.raises(FlintError, match=f"FL411.*{package}-pjrt"):
        plugins.installed(platform)
    for plugin, client in (("0.10.1", "0.10.2"), ("0.10.2", "0.10.1"), ("0.10.20", "0.10.2")):
        both = {f"{package}-plugin": plugin, f"{package}-pjrt": client}
        _installed(monkeypatch, {**jax, **both})
        with pytest.raises(FlintError, match=r"FL412.*jaxlib is 0\.10\.2"):
            plugins.installed(platform)
    again = "0.10.2.post1"  # AMD builds a version again
    _installed(monkeypatch, {**jax, f"{package}-plugin": again, f"{package}-pjrt": again})
    assert plugins.installed(platform).version == f"{package}-plugin {again}"


def test_a_libtpu_that_jax_did_not_ask_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = {"jax": "0.10.2", "jaxlib": "0.10.2"}
    _installed(monkeypatch, {**jax, "libtpu": "0.0.42.1"})
    assert plugins.installed("tpu") == plugins.Installed("libtpu 0.0.42.1")
    _installed(monkeypatch, {**jax, "libtpu": "0.0.421"})
    assert "asks for 0.0.42.*" in plugins.installed("tpu").warning


# the process --------------------------------------------------------------------------------------

_OPTIONS: dict[str, Any] = {
    "compiler": "xla-gpu",
    "platform": "cuda",
    "generates_code": True,
    "accelerator": "",
    "declared": [],
}
_ANSWER = """
import os, sys
sys.stderr.reconfigure(line_buffering=True)
from flint.passes.partition.worker import read_message, write_message
out = os.fdopen(os.dup(1), "wb")
options, module = read_message(sys.stdin.buffer)
"""


def _stand_in(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    command = [sys.executable, "-c", _ANSWER + body]
    monkeypatch.setattr(process, "child_command", lambda: command)


def test_what_a_compiler_gives_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(monkeypatch, "write_message(out, {'temp_bytes': 7}, module[::-1])")
    assert process.compile_in_child(_OPTIONS, b"abc") == ({"temp_bytes": 7}, b"cba")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('F1123 10:00:00.0 7 x.cc:1] Check failed: ok', file=sys.stderr); os.abort()",
         ["SIGABRT", "Check failed: ok"]),
        ("os.kill(os.getpid(), 9)", ["SIGKILL", "memory runs out"]),
        ("sys.exit(0)", ["exit status 0", "it printed nothing"]),
        ("print('Unknown flag in XLA_FLAGS: --xla_x', file=sys.stderr); sys.exit(1)",
         ["--xla_x", "unset it"]),
    ],
)  # fmt: skip
def test_the_end_of_a_compiler_is_one_error(
    monkeypatch: pytest.MonkeyPatch, body: str, said: list[str]
) -> None:
    _stand_in(monkeypatch, body)
    with pytest.raises(FlintError, match="FL401") as caught:
        process.compile_in_child(_OPTIONS, b"")
    assert all(words in str(caught.value) for words in said), caught.value


def test_a_compiler_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINT_CHILD_SECONDS", "0.5")
    _stand_in(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(FlintError, match=r"FL401.*did not finish in 0\.5 seconds"):
        process.compile_in_child(_OPTIONS, b"")


def test_a_lock_is_waited_for_and_then_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_POLL_SECONDS", 0.01)
    held = tmp_path / "held"
    held.touch()
    locked = "Internal error when accessing libtpu multi-process lockfile /tmp/libtpu_lockfile"
    body = f"""
if os.path.exists({str(held)!r}):
    os.remove({str(held)!r})
    print({locked!r}, file=sys.stderr); sys.exit(1)
write_message(out, {{}}, module)
"""
    _stand_in(monkeypatch, body)
    assert process.compile_in_child(_OPTIONS, b"x") == ({}, b"x"), "it did not try again"
    _stand_in(monkeypatch, f"write_message(out, {{'code': 'FL402', 'error': {locked!r}}}, b'')")
    with pytest.raises(FlintError, match="FL415"):
        process.compile_in_child(_OPTIONS, b"x", lock_seconds=0.0)


# the cache ----------------------------------------------------------------------------------------


def test_what_was_compiled_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    key = cache.key_of({"compiler": "xla-gpu"}, b"module")
    assert key != cache.key_of({"compiler": "xla-tpu"}, b"module") != key
    assert cache.find(key) is None
    cache.store(key, {"temp_bytes": 1}, b"compiled")
    assert cache.find(key) == ({"temp_bytes": 1}, b"compiled")
    (entry,) = (tmp_path / "compiled").iterdir()
    for spoilt in (entry.read_bytes()[:-1], entry.read_bytes()[:-1] + b"x", b"", b"\0" * 8):
        entry.write_bytes(spoilt)
        assert cache.find(key) is None, spoilt
    monkeypatch.setenv(cache.FOLDER, "off")
    cache.store(key, {}, b"compiled")
    assert cache.find(key) is None


def test_the_oldest_entries_go_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    monkeypatch.setattr(cache, "MOST_BYTES", 3000)
    folder = tmp_path / "compiled"
    folder.mkdir()
    foreign = [folder / "notes.txt", folder / "mine.compiled"]
    for file in foreign:
        file.write_bytes(b"x" * 4000)
    keys = [cache.key_of({"n": n}, b"") for n in range(4)]
    for key in keys:
        cache.store(key, {}, b"y" * 1200)
    assert all(file.exists() for file in foreign)
    assert [cache.find(key) is not None for key in keys] == [False, False, True, True]


def test_a_folder_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "compiled").write_text("a file")
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    cache.store(cache.key_of({}, b""), {}, b"compiled")
    assert cache.find(cache.key_of({}, b"")) is None


# what is answered ---------------------------------------------------------------------------------


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3]) + _varint(value)
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = io.BytesIO()
    while value > 0x7F:
        out.write(bytes([value & 0x7F | 0x80]))
        value >>= 7
    out.write(bytes([value]))
    return out.getvalue()


def _allocation(size: int, *flags: int, color: int = 0) -> bytes:
    return _field(3, _field(2, size) + b"".join(_field(f, 1) for f in flags) + _field(8, color))


def test_memory_is_read_from_the_assignment_of_buffers() -> None:
    """3: thread-local, 5: argument, 7: result; a color other than 0 is not HBM."""
    parts = [
        _allocation(100, 5),
        _allocation(1000, 5, 7),
        _allocation(30, 7),
        _allocation(7),
        _allocation(500, 3),
        _allocation(900, color=1),
    ]
    dump = _field(1, b"module") + _field(3, b"".join(parts))
    found = split_dump(dump)
    assert found is not None
    facts, module = found
    assert module == b"module"
    memory = CompilerMemory(**facts)
    assert memory == CompilerMemory(1100, 1030, 1000, 7, 0)
    assert memory.peak_bytes == 1137
    assert all(split_dump(dump[:n]) is None for n in range(len(dump))), "a part counts as whole"


def test_who_compiled_a_workload_is_kept() -> None:
    by = CompiledBy("xla-tpu-cycles", "v5p", "libtpu 1", "2x2x1", CompilerMemory(1, 2, 0, 3, 4))
    assert CompiledBy.from_json(by.to_json()) == by
    assert by.profile == "xla-tpu"
    without = CompiledBy("xla-gpu", "h100", "p 1", "8 GPUs")
    assert CompiledBy.from_json(without.to_json()) == without


@pytest.mark.parametrize(
    ("compiled", "chip", "fits"),
    [
        ("h100", "H100-SXM5-80GB", True),
        ("a100-40", "A100-SXM4-80GB", False),
        ("a100-40", "A100-SXM4-40GB", True),
        ("v5p", "TPU v5p", True),
        ("v5p", "TPU v5e", False),
        ("b200", "GB200-186GB", False),
        ("h100", "H100-PCIe-80GB", False),
    ],
)
def test_an_estimate_says_when_kernels_are_of_another_chip(
    compiled: str, chip: str, fits: bool
) -> None:
    by = CompiledBy("xla-gpu", compiled, "p 1", "8 GPUs")
    program = ProgramBuilder(Mesh(("data",), (2,))).build()
    workload = Workload.single(program, {"compiler": by.to_json()})
    said = compiler_notes(workload, chip)
    assert bool(said) != fits
    assert all(compiled in note and chip in note for note in said)
    assert compiler_notes(Workload.single(program), chip) == []
