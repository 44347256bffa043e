"""Kill commands at random moments, and look at what they leave.

    python benchmarks/kills.py --kills 500 --seed 0

Works in a new folder below --directory (the system's temporary directory unless it is given): a
project with a model, a script, a profile, a trace, a simulator and files of its user. Each time a
command (`COMMANDS`) gets SIGINT, SIGTERM, SIGHUP or SIGKILL. Then no other file may have changed, and
each trace and each file is as it was, as a whole run leaves it, or not there where nothing was; the
study of `explore` holds whole points. Only SIGKILL may leave anything else beside them or in TMPDIR:
then the same command runs to its end, and nothing may be left. Stops at the first loss, which it
describes; at the end it prints one line for each command and signal.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from flint.backends.chakra.manifest import NAME, Manifest, matches, read_manifest
from flint.cli.command_line import app, run
from flint.cli.signals import take_signals

MODEL = """
import flint, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

@flint.entry(axes=("data",))
def step(mesh):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
    def loss(w, x):
        return jnp.sum((x @ w) ** 2)
    return flint.Step(jax.grad(loss), (array((128, 128)), array((64, 128), "data")))
"""
HLO = """HloModule step, num_partitions=4

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }

ENTRY main {
  x = f32[16,128] parameter(0)
  w = f32[128,128] parameter(1)
  d = f32[128,128] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  r = f32[128,128] all-reduce(d), channel_id=1, replica_groups={{0,1,2,3}},
    use_global_device_ids=true, to_apply=add
  ROOT o = f32[128,128] dot(r, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STUDY = "points.study"
#: Command -> its weight, and what it writes.
COMMANDS = {
    "capture": (20, "fresh"),
    "overwrite": (30, "out"),
    "jax": (2, "out"),
    "check": (10, None),
    "estimate": (17, "view.pftrace"),
    "export": (20, "graph.json"),
    "report": (12, "page.html"),
    "import": (12, "measured.flint"),
    "anonymize": (8, "shared.flint"),
    "simulate": (8, None),
    "run": (4, "flint.lock"),
    "verify": (3, "junit.xml"),
    "explore": (8, STUDY),
    "world": (1, "fresh"),
}
#: Where `run` and `verify` keep what they captured.
CACHE = ".flint_cache"
PROFILE = Path(__file__).parent / "data" / "kineto" / "h100_bert-small.json.gz"
SIMULATOR = """#!/bin/sh
for rank in 0 1 2 3; do
  echo "sys[$rank] finished, 1000 cycles, exposed communication 300 cycles."
  sleep 0.02
done
"""
PROJECT = """clusters = ["h100-dgx"]

[capture.step]
model = "step.hlo"
mesh = "4"
"""
#: An old and a new trace differ in these.
MESHES = ("data=4", "data=2,model=2")
#: Commands that read the trace `out`: each has another result for each of these meshes.
READERS = ("check", "estimate", "export", "report", "anonymize")
#: Commands that start processes of their own, and so are started as a user does.
SPAWNED = ("jax", "world", "run", "verify", "explore")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
NAMES = tuple(s.name for s in SIGNALS)
#: What is counted of each command: how it ended, and after how many kills something was left.
ENDS = (*NAMES, "finished", "left")


class Forked:
    """A command in a process that has imported everything: what is killed is work, not imports."""

    def __init__(self, arguments: list[str], place: Path) -> None:
        self.returncode: int | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        self._pid = os.fork()
        if self._pid == 0:
            self._run(arguments, place)

    def _run(self, arguments: list[str], place: Path) -> None:
        try:
            take_signals()
            os.chdir(place)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(self._said.fileno(), 2)
            sys.argv[1:] = arguments
            run()
        finally:
            os._exit(130)  # a signal that came before the command had begun

    def send_signal(self, number: int) -> None:
        """To the process alone."""
        os.kill(self._pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[None, bytes]:
        """Wait, and return what was said on stderr. Raises TimeoutExpired."""
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                self._said.seek(0)
                return None, self._said.read()
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired("flint", timeout or 0)
            time.sleep(min(0.001, max(0.0, end - time.monotonic())))


@dataclass
class Project:
    """A folder of a user's, and what its files may be."""

    root: Path
    mine: dict[str, bytes] = field(default_factory=dict)
    #: Digests that a file written by a command may have.
    known: dict[str, set[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """Where commands run."""
        return self.root / "project"

    @property
    def temporary(self) -> Path:
        """TMPDIR of commands."""
        return self.root / "tmp"

    def prepare(self) -> None:
        """Files of the user, one trace, and one run of each command for its time and its result."""
        for folder in (self.place / ".git" / "objects", self.place / "results", self.temporary):
            folder.mkdir(parents=True)
        for name, text in {
            "model.py": MODEL,
            "step.hlo": HLO,
            "script.py": SCRIPT,
            "notes.txt": "notes",
            ".git/HEAD": "ref: refs/heads/main",
            "results/.out.csv": "1,2",
            ".out.notes": "mine",
            "manifest.json": "{}",
            "sim": SIMULATOR,
            "flint.toml": PROJECT,
        }.items():
            (self.place / name).write_text(text)
        (self.place / "sim").chmod(0o755)
        shutil.copy(PROFILE, self.place / "profile.json.gz")
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.mine = self._files()
        with contextlib.chdir(self.place):
            for name in ("overwrite", *READERS, "simulate", "import"):  # imports what they need
                CliRunner().invoke(app, self.command(name, MESHES[0]))
        for writer, mesh in (("overwrite", MESHES[0]), ("overwrite", MESHES[1]), ("jax", "4")):
            self.run(writer, mesh)
            for reader in READERS:
                self.run(reader, mesh)
                self._learn(COMMANDS[reader][1])
        for command in ("simulate", "import", "run", "verify", "explore"):
            self.run(command, "4")
            if command != "explore":
                self._learn(COMMANDS[command][1])
        for command in ("capture", "world"):
            shutil.rmtree(self.place / "fresh", ignore_errors=True)
            self.run(command, "4")
        self.look()
        self.require_nothing_left()

    def _learn(self, written: str | None) -> None:
        if written is not None:
            data = (self.place / written).read_bytes()
            self.known.setdefault(written, set()).add(hashlib.sha256(data).hexdigest())

    def command(self, name: str, mesh: str) -> list[str]:
        """The arguments of a command for a mesh of one axis."""
        return {
            "capture": ["capture", "step.hlo", "--mesh", mesh, "-o", "fresh"],
            "overwrite": ["capture", "step.hlo", "--mesh", mesh, "-o", "out"],
            "jax": ["capture", "model.py", "--mesh", mesh, "-o", "out"],
            "check": ["check", "out"],
            "estimate": ["estimate", "out", "-c", "h100-dgx", "--perfetto", "view.pftrace"],
            "export": ["export", "out", "-o", "graph.json"],
            "report": ["report", "out", "-c", "h100-dgx", "-o", "page.html"],
            "import": ["import", "profile.json.gz", "-o", "measured.flint"],
            "anonymize": ["anonymize", "out/workload.flint", "-o", "shared.flint"],
            "simulate": ["simulate", "out", "--with", "astra-sim", "--binary", "./sim"],
            "run": ["run", "--anew"],
            "verify": ["verify", "--junit", "junit.xml"],
            "explore": [
                *("explore", "step.hlo", "-c", "h100-dgx", "--sweep", "stack=xla,inductor"),
                *("--sweep", "cluster.ib.bandwidth=10..80GB/s", "-j", "2", "--study", STUDY),
            ],
            "world": ["capture", "script.py", "--world", "--mesh", mesh, "-o", "fresh"],
        }[name]

    def start(self, name: str, mesh: str) -> subprocess.Popen[bytes] | Forked:
        """A command under way."""
        arguments = self.command(name, mesh)
        if name not in SPAWNED:
            return Forked(arguments, self.place)
        return subprocess.Popen(
            [sys.executable, "-m", "flint", *arguments],
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, name: str, mesh: str) -> None:
        """A command to its end, timed."""
        started = time.monotonic()
        process = self.start(name, mesh)
        _, said = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name} ended with {process.returncode}: {said.decode()}")
        self.seconds[name] = time.monotonic() - started

    def _files(self) -> dict[str, bytes]:
        """Every file of the user's: those below nothing that a command writes."""
        written = {w for _, w in COMMANDS.values() if w is not None}
        found = {}
        for path in sorted(self.place.rglob("*")):
            name = path.relative_to(self.place)
            hidden = ".flint-" in name.parts[0] or name.parts[0].startswith(f"{STUDY}-")
            if path.is_file() and name.parts[0] not in {*written, CACHE} and not hidden:
                found[str(name)] = path.read_bytes()
        return found

    def look(self) -> None:
        """Raise SystemExit if anything of the user's changed, or anything is half-written."""
        if (now := self._files()) != self.mine:
            different = {k for k in now | self.mine if now.get(k) != self.mine.get(k)}
            raise SystemExit(f"files of the user changed: {sorted(different)}")
        if not (self.place / "out").is_dir():
            raise SystemExit("the trace is gone")
        for name in ("out", "fresh"):
            if (self.place / name).exists():
                require_whole(self.place / name)
        for name, digests in self.known.items():
            path = self.place / name
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() not in digests:
                raise SystemExit(f"{name} is neither the old file nor the new one")
        if (self.place / STUDY).exists():
            require_whole_study(self.place)

    def left(self) -> list[str]:
        """What is neither the user's nor what a command was to write."""
        written = {w for _, w in COMMANDS.values() if w is not None}
        own = {Path(name).parts[0] for name in self.mine}
        beside = [name for name in os.listdir(self.place) if name not in {*written, *own, CACHE}]
        inside = [str(p.relative_to(self.place)) for p in self.place.rglob("*/.*.flint-*")]
        return beside + inside + [f"TMPDIR/{name}" for name in os.listdir(self.temporary)]

    def require_nothing_left(self) -> None:
        """Raise SystemExit for a file that nobody asked for."""
        if self.left():
            raise SystemExit(f"left: {self.left()}")


def require_whole(folder: Path) -> None:
    """Raise SystemExit unless a trace has every file of its manifest, as it was, and no other."""
    manifest = read_manifest(folder)
    if not isinstance(manifest, Manifest):
        raise SystemExit(f"{folder} has no manifest")
    if {*manifest.listing, NAME} != set(os.listdir(folder)):
        raise SystemExit(f"{folder} has other files than its manifest lists")
    for name, listed in manifest.listing.items():
        if not matches(listed, [(folder / name).read_bytes()]):
            raise SystemExit(f"{folder / name} is not what its manifest lists")


def require_whole_study(folder: Path) -> None:
    """Raise SystemExit for a damaged study. Looks at a copy: to open one tidies up beside it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as copied:
        for path in folder.glob(f"{STUDY}*"):
            shutil.copy(path, copied)
        with contextlib.closing(sqlite3.connect(Path(copied) / STUDY)) as study:
            (said,) = study.execute("PRAGMA integrity_check").fetchone()
    if said != "ok":
        raise SystemExit(f"the study is damaged: {said}")


def kill_once(project: Project, chance: random.Random, counts: Counter[tuple[str, str]]) -> None:
    """One command, one signal, one look; and another run if something is left."""
    weights = [weight for weight, _ in COMMANDS.values()]
    name = chance.choices(list(COMMANDS), weights)[0]
    number, mesh = chance.choice(SIGNALS), chance.choice(MESHES)
    if name in SPAWNED:
        mesh = "4"
    if name in ("run", "explore") and chance.random() < 0.5:
        (project.place / str(COMMANDS[name][1])).unlink(missing_ok=True)
    longest = project.seconds[name]
    # Half of the moments are late, where files are written.
    delay = (
        chance.uniform(0, longest) if chance.random() < 0.5 else longest * chance.gauss(0.9, 0.1)
    )
    if name == "verify" and not (project.place / "flint.lock").exists():
        project.run("run", "4")
    shutil.rmtree(project.place / "fresh", ignore_errors=True)
    started = time.monotonic()
    process = project.start(name, mesh)
    try:
        _, said = process.communicate(timeout=max(delay, 0))
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        _, said = process.communicate()
    else:
        project.seconds[name] = time.monotonic() - started
    ended = "finished" if process.returncode == 0 else number.name
    begins = b"KeyboardInterrupt" in said and b"/cli/" not in said  # Python itself, not yet Flint
    if process.returncode not in (0, 129, 130, 143, *(-n for n in SIGNALS)) and not begins:
        raise SystemExit(f"{name} ended with {process.returncode}: {said.decode()}")
    counts[name, ended] += 1
    project.look()
    if project.left():
        counts[name, "left"] += 1
        if process.returncode not in (0, -signal.SIGKILL) and not begins:
            raise SystemExit(f"{name} left {project.left()} after {number.name}")
        time.sleep(1.5)  # children look once a second whether their parent lives
        project.run(name, mesh)
        project.look()
        project.require_nothing_left()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, kill, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of commands, signals and moments")
    parser.add_argument("--directory", type=Path, help="where to work")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup does
    chance, counts = random.Random(options.seed), Counter[tuple[str, str]]()
    # Not TemporaryDirectory: it is removed at the end of each process, forks included.
    root = Path(tempfile.mkdtemp(prefix="flint-kills-", dir=options.directory))
    try:
        project = Project(root)
        project.prepare()
        while (killed := sum(n for (_, end), n in counts.items() if end in NAMES)) < options.kills:
            if killed % 25 == 0:
                print(f"{killed} kills: {dict(counts)}", file=sys.stderr, flush=True)
            kill_once(project, chance, counts)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{'command':<10} " + " ".join(f"{end:>9}" for end in ENDS))
    for name in COMMANDS:
        print(f"{name:<10} " + " ".join(f"{counts[name, end]:>9}" for end in ENDS))
    print("nothing was lost, nothing half-written, nothing left after the next run")


if __name__ == "__main__":
    main()
