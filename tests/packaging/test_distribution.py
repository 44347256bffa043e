"""What is in the sdist and the wheel, and that an installation of either kind works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("passes", "frontends", "backends")
ABOUT = ("README.md", "LICENSE", "MANIFEST.in", "build_backend.py", "pyproject.toml")
SOURCES = ("flint", *FOLDERS, ".editable", *ABOUT)


def _cannot_build() -> str:
    try:
        if int(version("setuptools").split(".")[0]) < 77:
            return "needs setuptools >= 77"
    except PackageNotFoundError:
        return "needs setuptools"
    missing = [name for name in ("build", "pip") if find_spec(name) is None]
    return f"needs {', '.join(missing)}" if missing else ""


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(_cannot_build()), reason=_cannot_build() or "can build"),
]


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run to the end, without the source tree on the path; returns stdout."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, env={**clean, **(env or {})}
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout


def copy_sources(target: Path) -> Path:
    """The files that are built from, links kept, in a directory that may be written to."""
    target.mkdir()
    for source in (ROOT / name for name in SOURCES if (ROOT / name).exists()):
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / source.name, symlinks=True, ignore=skipped)
        else:
            shutil.copy2(source, target)
    return target


def python_files() -> set[str]:
    """Names in a wheel of every Python file in the checkout."""
    found = {f"flint/{p.relative_to(ROOT / 'flint').as_posix()}" for p in _python("flint")}
    for folder in FOLDERS:
        found |= {f"flint/{p.relative_to(ROOT).as_posix()}" for p in _python(folder)}
    return found


def _python(folder: str) -> Iterator[Path]:
    for directory, names, files in os.walk(ROOT / folder):  # does not follow links
        names[:] = [n for n in names if n != "__pycache__"]
        yield from (Path(directory) / f for f in files if f.endswith(".py"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an sdist and the wheel that was built from it."""
    work = tmp_path_factory.mktemp("dist")
    source = copy_sources(work / "source")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", "out", str(source), cwd=work)
    return work / "out"


def wheel_names(directory: Path) -> set[str]:
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_from_the_sdist_holds_every_module_as_part_of_flint(dist: Path) -> None:
    packaged = {n for n in wheel_names(dist) if n.endswith(".py")}
    assert packaged == python_files()
    assert "flint/passes/base.py" in packaged


def test_the_wheel_holds_every_cluster_file(dist: Path) -> None:
    packaged = {n for n in wheel_names(dist) if n.endswith(".toml") and "/cluster/" in n}
    shipped = {
        f"flint/cluster/{folder}/{p.name}"
        for folder in ("presets", "stacks")
        for p in (ROOT / "flint" / "cluster" / folder).glob("*.toml")
    }
    assert packaged == shipped | {"flint/cluster/residuals.toml"}
    assert "flint/cluster/presets/h100-dgx.toml" in packaged


def test_the_wheel_holds_every_schema(dist: Path) -> None:
    packaged = {n for n in wheel_names(dist) if n.endswith(".json")}
    assert packaged == {
        f"flint/schemas/{p.name}" for p in (ROOT / "flint" / "schemas").glob("*.json")
    }
    assert "flint/schemas/estimate-1.json" in packaged


def test_wheel_has_what_the_leak_report_compares_with(dist):
    names = wheel_names(dist)
    assert {
        f"flint/tools/share/leaks/{n}"
        for n in ("known.npz", "models.toml", "operators.txt", "words.txt")
    } <= set(names)
    assert "flint/tools/share/synth/programs/000.flint" in names


def test_the_wheel_holds_style_and_script_of_reports(dist: Path) -> None:
    page = Path("flint/tools/report/page")
    assert {str(page / name) for name in ("parts.css", "page.css", "page.js")} <= wheel_names(dist)


def test_the_wheel_is_typed_licensed_and_owns_one_name(dist: Path) -> None:
    names = wheel_names(dist)
    (info,) = {n.split("/")[0] for n in names if ".dist-info/" in n}
    assert "flint/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    assert {n.split("/")[0] for n in names} == {"flint", info}
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{info}/top_level.txt").decode().split() == ["flint"]
        commands = archive.read(f"{info}/entry_points.txt").decode()
    assert "flint = flint.cli:main" in commands
    assert "flint-ir = flint.cli:main" in commands


def test_the_wheel_built_from_the_checkout_is_the_same(dist: Path, tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", "out", str(source))
    run(*build, cwd=tmp_path)
    assert wheel_names(tmp_path / "out") == wheel_names(dist)


def test_a_checkout_whose_links_are_files_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    without_links(source)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", "out", str(source))
    run(*build, cwd=tmp_path)
    assert wheel_names(tmp_path / "out") == wheel_names(dist)


def without_links(source: Path) -> None:
    """What Git writes with core.symlinks=false: files that hold the links' targets."""
    for link in (*(source / "flint" / f for f in FOLDERS), source / ".editable" / "flint"):
        if link.is_symlink():  # else this checkout is such a one already
            target = os.readlink(link)
            link.unlink()
            link.write_text(target)


SMOKE = """
import flint, pathlib
from flint.passes.base import run_passes
from flint.backends.chakra import read
from flint.io import user_places
assert "64" in str(flint.Mesh.parse("64x8"))
assert "h100-dgx" in flint.Cluster.names()
assert flint.Cluster.load("v5p").chip.systolic is not None
print(pathlib.Path(flint.__file__).resolve())
"""


def test_the_wheel_works_unpacked_away_from_the_checkout(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shown = run(
        sys.executable, "-c", SMOKE, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}
    )
    assert Path(shown.strip()).is_relative_to(tmp_path / "site")


def test_the_unpacked_sdist_works_though_it_has_no_links(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    run("tar", "-xf", str(sdist), cwd=tmp_path)
    (unpacked,) = (p for p in tmp_path.iterdir() if p.is_dir())
    assert not (unpacked / "flint" / "passes").exists()
    shown = run(sys.executable, "-c", SMOKE, cwd=unpacked)
    assert Path(shown.strip()).is_relative_to(unpacked)


def test_a_checkout_whose_links_are_files_still_works(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    without_links(source)
    shown = run(sys.executable, "-c", SMOKE, cwd=source)
    assert Path(shown.strip()).is_relative_to(source)


@pytest.mark.parametrize("links", [True, False])
def test_an_editable_installation_sees_new_files_and_packages(tmp_path: Path, links: bool) -> None:
    """With links by a directory, which type checkers read too; without them by an import hook."""
    source = copy_sources(tmp_path / "source")
    if not links:
        without_links(source)
    has_links = (source / ".editable" / "flint" / "passes").is_dir()
    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet")
    run(sys.executable, *install, "--target", str(site), "-e", str(source), cwd=tmp_path)
    (source / "passes" / "made_later").mkdir()
    (source / "passes" / "made_later" / "__init__.py").write_text("ANSWER = 42\n")
    (source / "passes" / "new_module.py").write_text("ANSWER = 43\n")
    code = f"""
import site
site.addsitedir({str(site)!r})
import flint.passes.made_later, flint.passes.new_module
print(flint.passes.made_later.ANSWER, flint.passes.new_module.ANSWER)
try:
    import passes
except ModuleNotFoundError:
    print("passes is not a name of its own")
"""
    shown = run(sys.executable, "-I", "-S", "-c", code, cwd=tmp_path)  # of all sites, that one
    assert shown.splitlines() == ["42 43", "passes is not a name of its own"]
    record = next(site.glob("*.dist-info/RECORD")).read_text()
    assert ("flint_ir_sources.pth,sha256=" in record) == has_links
