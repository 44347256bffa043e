"""A capture is made anew if what it was made of changed, and only then. One capture for all tests."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flint.io.inputs import ReadInput, ReadInputKind
from flint.tools.change.project.cache import Cache, Entry
from flint.tools.change.project.config import load_project
from tests.project_folders import MODEL, PROJECT, flint

pytest.importorskip("jax", reason="captures a JAX program")

#: Reads a module, a data file, the names in a folder, and a variable.
READS = """
import os, json
from pathlib import Path
from sizes import FACTOR
Path("made.txt").write_text("own output")
json.loads(Path("config.json").read_text()), sorted(os.listdir("data")), os.environ.get("SIZE")
"""
CLUSTER = 'name = "ours"\ntitle = "ours"\nbase = "base.toml"\n'
PROJECT_WITH_INPUTS = (
    PROJECT.replace('["h100-dgx"]', '["net/ours.toml"]') + 'environment = ["SIZE"]\n'
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `flint run` was called."""
    root = tmp_path_factory.mktemp("project")
    texts = {
        "model.py": MODEL.replace("HIDDEN = 256\n", f"{READS}\nHIDDEN = 64 * FACTOR\n"),
        "sizes.py": "FACTOR = 2\n",
        "config.json": "{}",
        "data/a.npy": "",
        "net/ours.toml": CLUSTER,
        "net/base.toml": 'name = "base"\ntitle = "base"\nbase = "h100-dgx"\n',
        "flint.toml": PROJECT_WITH_INPUTS,
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "below").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root / "below")
        result = flint("run")
        assert result.exit_code == 0, result.stderr
        assert "captured  new" in result.stdout
    return root


@pytest.fixture
def undone(project: Path) -> Iterator[Path]:
    """The same, which a test may change."""
    kept = project.parent / "kept"
    shutil.copytree(project, kept)
    yield project
    shutil.rmtree(project)
    kept.rename(project)


def found(root: Path) -> Entry | None:
    p = load_project(root / "flint.toml")
    return Cache(root).find(p.captures["train"])


def test_inputs_are_those_of_the_model(project: Path) -> None:
    entry = found(project)
    assert entry is not None
    inside = {
        (i.kind, Path(i.path).relative_to(project).as_posix())
        for i in entry.inputs
        if Path(i.path).is_relative_to(project) and i.digest
    }
    assert inside == {
        *((ReadInputKind.FILE, n) for n in ("model.py", "sizes.py", "config.json")),
        *((ReadInputKind.FILE, n) for n in ("net/ours.toml", "net/base.toml")),
        *((ReadInputKind.MODULES, "."), (ReadInputKind.NAMES, "data")),
    }
    assert entry.made_with["jax"]


@pytest.mark.cold
def test_nothing_changed_takes_little_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "flint", "verify"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "1 capture: 1 equal"
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 2.5, "the bar of 1 s is for an idle machine"


CHANGES: dict[str, Callable[[Path], object]] = {
    "model": lambda r: _append(r / "model.py", "# more\n"),
    "module": lambda r: _append(r / "sizes.py", "\n"),
    "data": lambda r: _append(r / "config.json", " "),
    "listed folder": lambda r: _append(r / "data" / "b.npy", ""),
    "shadowing module": lambda r: _append(r / "jax.py", ""),
    "cluster": lambda r: _append(r / "net" / "ours.toml", "# more\n"),
    "base of the cluster": lambda r: _append(r / "net" / "base.toml", "# more\n"),
    "missing module": lambda r: (r / "sizes.py").unlink(),
    "mesh": lambda r: _append(r / "flint.toml", "profile = 'xla-gpu'\n"),
    "entry of another version": lambda r: _spoil(r, lambda d: d.pop("snapshot")),
    "entry without a file": lambda r: _entry(r).with_suffix(".flint").unlink(),
    "entry of another workload": lambda r: _append(_entry(r).with_suffix(".flint"), "x"),
    "entry that is no JSON": lambda r: _entry(r).write_text("{"),
    "entry with other types": lambda r: _entry(r).write_text('{"inputs": 3, "snapshot": []}'),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_makes_it_stale(undone: Path, what: str) -> None:
    assert found(undone) is not None
    CHANGES[what](undone)
    assert found(undone) is None


HARMLESS: dict[str, Callable[[Path], object]] = {
    "its own output": lambda r: _append(r / "made.txt", "more"),
    "a file beside": lambda r: _append(r / "notes.md", "x"),
    "a folder of traces": lambda r: _append(r / "traces" / "trace.0.et", "x"),
    "budgets and traces": lambda r: _append(
        r / "flint.toml", "budgets = { flops = '+0' }\ntraces = { output = 'traces' }\n"
    ),
    "a touch": lambda r: (r / "model.py").touch(),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_others_do_not(undone: Path, what: str) -> None:
    HARMLESS[what](undone)
    assert found(undone) is not None


def test_variables_count_if_they_are_named_or_a_framework_reads_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XLA_FLAGS", "SIZE"):
        monkeypatch.setenv(name, "--changed")
        assert found(project) is None, name
        monkeypatch.delenv(name)
        assert found(project) is not None
    monkeypatch.setenv("UNRELATED", "1")
    assert found(project) is not None


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def _entry(root: Path) -> Path:
    (path,) = (root / ".flint_cache").glob("*.json")
    return path


def _spoil(root: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = json.loads(_entry(root).read_text())
    change(document)
    _entry(root).write_text(json.dumps(document))


SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from sizes import FACTOR

dist.init_process_group("nccl")
with open("config.json") as file:
    file.read()
model = DDP(torch.nn.Linear(64 * FACTOR, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.randn(4, 64 * FACTOR, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
def test_what_the_process_of_a_script_reads_is_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="records a PyTorch program")
    monkeypatch.chdir(tmp_path)
    texts = {"train.py": SCRIPT, "sizes.py": "FACTOR = 2\n", "config.json": "{}"}
    texts["flint.toml"] = '[capture.train]\nmodel = "train.py"\nmesh = "4"\nworld = true\n'
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    result = flint("run")
    assert result.exit_code == 0, result.stderr
    entry = found(tmp_path)
    (record,) = (tmp_path / ".flint_cache").glob("*.json")
    stale = [i for i in json.loads(record.read_text())["inputs"] if not ReadInput(*i).is_current()]
    assert entry is not None, stale
    assert entry.made_with["torch"]
    own = {Path(i.path).name for i in entry.inputs if Path(i.path).parent == tmp_path and i.digest}
    assert {"train.py", "sizes.py", "config.json"} <= own
    _append(tmp_path / "config.json", " ")
    assert found(tmp_path) is None
