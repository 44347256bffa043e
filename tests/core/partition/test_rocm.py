"""AMD's compiler without ROCm: libraries that are made up, and what the plugin's say that they need."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.passes.compilers import child, rocm
from flint.passes.compilers.elf import Needs, Symbol, failing_library
from flint.passes.compilers.gpu_targets import GPU_TARGETS
from flint.passes.compilers.target import find_target

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="Linux on x86-64"
)
#: A library of this Python that is linked against others.
LINKED = Path(_ctypes.__file__)
_FUNCTIONS = [(f"hipFunction{n}", "hip_4.2" if n % 2 else "") for n in range(60)]


def test_a_made_up_library_is_found_by_its_name_and_its_functions_fail(tmp_path: Path) -> None:
    name = f"libflint_{os.getpid()}.so.7"
    (tmp_path / "any.so").write_bytes(failing_library(name, dict(_FUNCTIONS)))
    with pytest.raises(OSError, match="cannot open"):
        ctypes.CDLL(name)
    made = ctypes.CDLL(str(tmp_path / "any.so"))
    assert [made[function]() for function, _ in _FUNCTIONS] == [1] * len(_FUNCTIONS)
    assert not hasattr(made, "hipFunction60")
    assert ctypes.CDLL(name)._handle == made._handle, "what is linked against it finds another"
    for function, version in filter(lambda f: f[1], _FUNCTIONS):
        assert _has(made, function, version) and not _has(made, function, "hip_4.3")


def _has(library: ctypes.CDLL, symbol: str, version: str) -> bool:
    find = ctypes.CDLL(None).dlvsym
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    find.restype = ctypes.c_void_p
    return find(library._handle, symbol.encode(), version.encode()) is not None


@given(st.dictionaries(st.from_regex(r"[a-zA-Z_]\w{0,40}", fullmatch=True), st.sampled_from(["", "A", "B_2"]), max_size=40))  # fmt: skip
def test_every_set_of_names_makes_a_library(symbols: dict[str, str]) -> None:
    descriptor = os.memfd_create("any")
    try:
        os.write(descriptor, failing_library("any", symbols))
        made = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        own = {name: ctypes.cast(made[name], ctypes.c_void_p).value for name in symbols}
        assert len(set(own.values())) <= 1 and all(made[name]() == 1 for name in symbols)
        _ctypes.dlclose(made._handle)
    finally:
        os.close(descriptor)


def test_what_a_library_needs_is_what_the_loader_finds() -> None:
    needs = Needs.of(LINKED)
    assert "libc.so.6" in needs.libraries
    versioned = [s for s in needs.symbols if s.library == "libc.so.6"]
    assert len(versioned) > 3
    libc = ctypes.CDLL("libc.so.6")
    assert all(_has(libc, s.name, s.version) for s in versioned)
    assert any(s.name.startswith("Py") and not s.version for s in needs.symbols)


def test_libraries_and_symbols_of_rocm_alone_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        Needs(
            ("librccl.so.1", "libamdhip64.so.7", "libc.so.6"),
            (
                Symbol("ncclSend"),
                Symbol("hipInit", "hip_4.2", "libamdhip64.so.7"),
                Symbol("malloc", "GLIBC_2.2.5", "libc.so.6"),
                Symbol("PyLong_FromLong"),
            ),
        ),
        Needs(("libamdhip64.so.7",), (Symbol("hipFree", "hip_4.3", "libamdhip64.so.7"),)),
        Needs(("libm.so.6",), (Symbol("nobody_has_this"),)),
    ]
    monkeypatch.setattr(rocm.Needs, "of", lambda n: n)
    assert rocm.made_up(needs) == {  # type: ignore[arg-type]
        "librccl.so.1": {"ncclSend": ""},
        "libamdhip64.so.7": {"hipInit": "hip_4.2", "hipFree": "hip_4.3"},
    }


@given(st.integers(0, 1 << 14), st.integers(0, 255), st.integers(0, 1 << 14))
def test_a_spoilt_library_is_refused_or_read(place: int, byte: int, left: int) -> None:
    """Neither a hang nor another error, whichever byte of its tables is another."""
    data = bytearray(LINKED.read_bytes())
    data[place] = byte
    descriptor = os.memfd_create("any")
    try:
        os.write(descriptor, data[: len(data) - left])
        Needs.of(Path(f"/proc/self/fd/{descriptor}"))
    except ValueError:
        pass
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ" * 500, b"\x7fELF\2\1" + bytes(300)])
def test_a_plugin_that_is_no_library_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "their_plugin").mkdir()
    (tmp_path / "their_plugin" / "plugin.so").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FlintError, match=r"FL417.*(plugin\.so|empty file)") as caught:
        rocm.load_without_rocm(["their_plugin"])
    assert "Linux" in str(caught.value.help)


def test_a_system_without_files_in_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm, "made_up", lambda libraries: {"libhip.so": {}})
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(FlintError, match="FL417"):
        rocm.load_without_rocm([])


# what is compiled ---------------------------------------------------------------------------------


def test_descriptions_of_amds_chips_name_their_architectures() -> None:
    amd = {n: t for n, t in GPU_TARGETS.items() if t.platform == "rocm"}
    assert {n: [a for a in ("gfx942", "gfx950", "gfx1250") if a in t.text()] for n, t in amd.items()} == {
        "mi300x": ["gfx942"], "mi325x": ["gfx942"], "mi355x": ["gfx950"], "mi455x": ["gfx1250"],
    }  # fmt: skip
    for target in amd.values():
        text = target.text()
        assert 'platform_name: "ROCM"' in text and "cuda" not in text
        assert text.count("{") == text.count("}")
    assert find_target("xla-gpu", "mi300x-oam").platform == "rocm"


@pytest.mark.parametrize(
    ("refused", "asked"),
    [
        ("", ["theirs"]),
        ("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 131072",
         ["theirs", "theirs,triton-softmax-rewriter"]),
    ],
)  # fmt: skip
def test_a_kernel_that_is_too_wide_is_left_out(refused: str, asked: list[str]) -> None:
    debug, seen = SimpleNamespace(xla_disable_hlo_passes="theirs"), []

    def compile() -> str:
        seen.append(debug.xla_disable_hlo_passes)
        if refused and len(seen) == 1:
            raise RuntimeError(refused)
        return "compiled"

    compiled, warning = child._without_too_wide(compile, debug)
    assert (compiled, seen, bool(warning)) == ("compiled", asked, bool(refused))
