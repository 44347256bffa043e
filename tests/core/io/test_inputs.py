"""What a process reads is written down, and whether the same is there later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flint.io import inputs
from flint.io.inputs import CHANGED, RECORD, ROOT, ReadInput, ReadInputKind, recorded

#: Reads in all the ways that are told apart.
PROGRAM = """
import glob, os, shutil, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, "src")
import early  # so that the folder's names are known to Python before
from flint.io.inputs import record_if_asked
record_if_asked()
if len(sys.argv) > 1:  # the child
    open("of_child.txt").read()
    raise SystemExit
import helper, package.inner
open("data.bin", "rb").read()
os.close(os.open("low.bin", os.O_RDONLY))
open("both.bin", "r+b").read()
try:
    open("absent.toml")
except OSError:
    pass
Path("made.txt").write_text("own"); open("made.txt").read()
try:
    open("kept.json").read()
except OSError:
    Path("kept.json").write_text("{}")
with open("appended.log", "a") as f: f.write("x")
Path("asked.toml").exists(); os.path.isfile("asked_too.toml"); Path("data.bin").exists()
if not os.path.isdir("out"): os.makedirs("out")
shutil.copystat("data.bin", "made.txt", follow_symlinks=False)
glob.glob("data/*.npy")
open("moving.txt").read(); time.sleep(0.02); os.utime("moving.txt")
subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str], ReadInput]]:
    """A folder and what the program read there, by kind and path."""
    root = tmp_path_factory.mktemp("project")
    for name in ("data.bin", "low.bin", "both.bin", "of_child.txt", "moving.txt", "data/a.npy"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    (root / "src" / "package").mkdir(parents=True)
    (root / "src" / "helper.py").write_text("import json")
    (root / "src" / "early.py").write_text("")
    (root / "src" / "package" / "__init__.py").write_text("")
    (root / "src" / "package" / "inner.py").write_text("")
    (root / "program.py").write_text(PROGRAM)
    out = root.parent / f"{root.name}.reads"
    found = {
        RECORD: str(out),
        ROOT: str(root),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "program.py"]
    subprocess.run(command, cwd=root, env={**os.environ, **found}, check=True)
    return root, {(i.kind, os.path.relpath(i.path, root)): i for i in recorded(out)}  # fmt: skip


def test_files_modules_and_folders_are_found(
    ran: tuple[Path, dict[tuple[str, str], ReadInput]],
) -> None:
    _, found = ran
    read = {path for kind, path in found if kind == "file" and not path.startswith("..")}
    assert read == {
        *("data.bin", "low.bin", "both.bin", "absent.toml", "of_child.txt", "moving.txt"),
        *("asked.toml", "asked_too.toml"),
        *(
            "src/early.py",
            "src/helper.py",
            "src/package/__init__.py",
            "src/package/inner.py",
            "program.py",
        ),
    }
    assert {("modules", "src"), ("modules", "src/package"), ("names", "data")} <= set(found)
    assert found["file", "moving.txt"].digest == CHANGED
    assert found["file", "absent.toml"].digest == ""
    current = {path for (_, path), one in found.items() if one.is_current()}
    assert {p for _, p in found} - current == {"moving.txt"}


@pytest.mark.parametrize(
    ("change", "kind", "path"),
    [
        (lambda r: (r / "src" / "helper.py").write_text("import os"), "file", "src/helper.py"),
        (lambda r: (r / "of_child.txt").write_text("other"), "file", "of_child.txt"),
        (lambda r: (r / "data.bin").unlink(), "file", "data.bin"),
        (lambda r: (r / "absent.toml").write_text("now there"), "file", "absent.toml"),
        (lambda r: (r / "asked.toml").write_text("now there"), "file", "asked.toml"),
        (lambda r: (r / "data" / "b.npy").write_text(""), "names", "data"),
        (lambda r: (r / "src" / "json.py").write_text(""), "modules", "src"),
        (lambda r: _package(r / "src" / "json"), "modules", "src"),
    ],
)
def test_each_change_is_seen(change, kind, path, ran) -> None:
    root, found = ran
    one = found[kind, path]
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert one.is_current()
    change(root)
    assert not one.is_current()
    for new in [p for p in root.rglob("*") if p.is_file() and p not in before]:
        new.unlink()
    for p, data in before.items():
        p.write_bytes(data)
    assert one.is_current() or path == "src"  # an empty package's folder stays


def _package(folder: Path) -> None:
    folder.mkdir()
    (folder / "__init__.py").write_text("")


def test_what_is_no_module_does_not_count_for_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    before = inputs.digest_of(ReadInputKind.MODULES, str(tmp_path))
    (tmp_path / "traces").mkdir()
    (tmp_path / "out.json").write_text("{}")
    assert inputs.digest_of(ReadInputKind.MODULES, str(tmp_path)) == before
    (tmp_path / "b.so").write_text("")
    assert inputs.digest_of(ReadInputKind.MODULES, str(tmp_path)) != before


def test_the_environment_is_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = inputs.environment_of(["SIZE"])
    for name in ("XLA_FLAGS", "SIZE", "JAX_ENABLE_X64"):
        monkeypatch.setenv(name, "1")
        assert inputs.environment_of(["SIZE"]) != before, name
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLINT_CHILD_SECONDS", "7")
    monkeypatch.setenv("OTHER", "1")
    assert inputs.environment_of(["SIZE"]) == before
    packages = tmp_path / "site-packages"
    (packages / "jax-9.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(packages))
    newer = inputs.environment_of(["SIZE"])
    assert newer["packages"] != before["packages"]


def test_another_flint_of_the_same_version_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "site-packages" / "flint_ir-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: flint-ir\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(about.parent))
    found = []
    for digest in ("one", "two"):
        (about / "RECORD").write_text(f"flint/text.py,sha256={digest},9\n")
        found.append(inputs.environment_of([]))
    assert found[0] != found[1]
