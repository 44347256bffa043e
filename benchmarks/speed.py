"""CPU seconds and memory of commands, beside what they may take.

    python -m benchmarks.speed                       every group, one case after the other
    python -m benchmarks.speed scan written          two groups
    python -m benchmarks.speed unrolled --repeat 3   the least of three

Each case is `flint` with arguments, in a process of its own. `CPU s` is user and system time of that
process and of those that it ended, from its start: interpreter, imports, JAX's tracing and the
partitioner's process are part of it. `x import jax` is that time in CPU seconds of `import jax` in the
same run, `MB` the largest resident memory. A case may have a bar, in seconds or in times of `import jax`,
for one quiet core of a 2-core AMD EPYC virtual machine; the exit status is 1 if one is over it. What a
case reads is made before it and not counted. Files are written below --directory (the system's
temporary directory unless it is given), in a folder for each group that is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LLAMA, GPT3, TORCH = (
    f"{EXAMPLES}/{name}" for name in ("llama_jax.py", "gpt3_jax.py", "torch_llama.py")
)
#: A copy of the example whose layers nothing jits, and the line that is left out of it.
LOOP, JITTED = "llama_loop.py", "block = jax.jit(block)"
#: CPU seconds of a point of `flint explore`.
POINT_BAR = 0.6


@dataclass(frozen=True)
class Case:
    """A command, and what it may take: CPU seconds, or times of `import jax`."""

    name: str
    command: str
    bar_s: float | None = None
    bar_imports: float | None = None


def llama(model: str, mesh: str = "64x8", layers: str = "scan", file: str = LLAMA) -> str:
    """A capture of the training step."""
    return f"capture {file} --mesh {mesh} --set model={model} --set layers={layers}"


def gpt3(microbatches: int, data: int = 1) -> str:
    """A capture of GPT-3 in eight stages with tensor parallelism of eight."""
    return f"capture {GPT3} --mesh 8x{data}x8 --set microbatches={microbatches}"


def script(model: str, mesh: str) -> str:
    """A capture of the distributed PyTorch step."""
    return f"capture {TORCH} --mesh {mesh} --world -- --tp 8 --model {model}"


GROUPS: dict[str, tuple[Case, ...]] = {
    "scan": tuple(
        Case(f"{model}, {mesh}", llama(model, mesh), bar_imports=2)
        for model in ("8b", "70b", "405b")
        for mesh in ("1x8", "64x8", "4096x8")
    ),
    "unrolled": (
        Case("70b, 80 layers in a loop", llama("70b", layers="unrolled", file=LOOP), 8),
        Case("70b, 80 calls of one", llama("70b", layers="unrolled"), 5),
        Case("405b, 126 calls of one", llama("405b", layers="unrolled")),
    ),
    "pytorch": (
        Case("8b annotated, 64x8", f"capture {TORCH} --mesh 64x8"),
        Case("8b distributed, 64x8", script("8b", "64x8")),
        Case("70b distributed, 4096x8", script("70b", "4096x8")),
    ),
    "pipelines": (
        Case("GPT-3 TP8 PP8, 8, 64 ranks", f"{gpt3(8)} -o gpt3", 10),
        Case("the same, 64 microbatches", f"{gpt3(64)} -o gpt3-64", 20),
        Case("the same, 8, 512 ranks", f"{gpt3(8, data=8)} -o gpt3-512", 15),
        Case("405b TP8 PP16 DP128, 16", llama("405b", "16x128x8", file=f"{LLAMA}:pipelined")
             + " --set microbatches=16 --set parallel=fsdp+tp+sp --set reshard=false"),
    ),
    "written": (
        Case("8b, 512 ranks", f"{llama('8b')} -o few", 3),
        Case("4,096 ranks", f"{llama('8b', '512x8')} -o many"),
        Case("4,096 ranks, operations", f"{llama('8b', '512x8')} --granularity op -o operations"),
        Case("32,768 ranks, linked", f"{llama('8b', '4096x8')} --groups dims --link -o linked"),
    ),
    "estimated": (
        Case("70b, 512 ranks", "estimate scan -c h100-dgx", 0.7),
        Case("the same, unrolled", "estimate unrolled -c h100-dgx"),
    ),
    "checked": (
        Case("32,768 ranks, linked", "check --quiet linked"),
        Case("4,096 ranks, a file each", "check --quiet many"),
        Case("64 ranks of 147,762 nodes", "check --quiet gpt3-64"),
    ),
    "explored": (
        Case("70b on 512 H100", f"explore {LLAMA}:train -n 512 -c h100-dgx --set model=70b "
             "--sweep overlap=overlap,in-order --json"),
        Case("70b in a pipeline", f"explore {LLAMA}:pipelined -n 512 -c h100-dgx --set model=70b "
             "--mesh pipe=4..8,data=8..16,model=4..8 --sweep microbatches=8,16 --json"),
    ),
}  # fmt: skip
#: What the cases of a group read.
FIRST = {
    "estimated": (f"{llama('70b')} -o scan", f"{llama('70b', layers='unrolled')} -o unrolled"),
    "checked": (
        f"{llama('8b', '4096x8')} --groups dims --link -o linked",
        f"{llama('8b', '512x8')} -o many",
        f"{gpt3(64)} -o gpt3-64",
    ),
}


@dataclass(frozen=True)
class Used:
    """What a process took, and what it printed."""

    cpu_s: float
    megabytes: float
    said: str


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--repeat", type=int, default=1, help="take the least of so many")
    parser.add_argument("--directory", type=Path, help="where to write")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}")
    over = False
    print("| group | case | CPU s | x import jax | MB | bar |\n|---|---|--:|--:|--:|--:|")
    for group in options.groups:
        with tempfile.TemporaryDirectory(prefix="flint-speed-", dir=options.directory) as name:
            over |= _print_group(group, Path(name), options.repeat)
    return int(over)


def _print_group(group: str, folder: Path, repeat: int) -> bool:
    """Whether a case is over its bar."""
    over = False
    text = Path(LLAMA).read_text(encoding="utf-8")
    assert text.count(JITTED) == 1, f"the example has no line '{JITTED}'"
    (folder / LOOP).write_text(text.replace(JITTED, "pass"), encoding="utf-8")
    for command in FIRST.get(group, ()):
        flint(command, folder)
    for case in GROUPS[group]:
        imported = _least([sys.executable, "-c", "import jax"], folder, repeat).cpu_s
        used = _least([sys.executable, "-m", "flint", *case.command.split()], folder, repeat)
        bar_s = case.bar_s or (case.bar_imports or 0) * imported
        over |= bool(bar_s) and used.cpu_s > bar_s
        cells = (group, case.name, f"{used.cpu_s:.2f}", f"{used.cpu_s / imported:.1f}")
        bar = f"{bar_s:.1f}" if bar_s else ""
        print(f"| {' | '.join(cells)} | {used.megabytes:.0f} | {bar} |", flush=True)
        if "--json" in case.command:
            points = json.loads(used.said)["points"]
            a_point = used.cpu_s / points
            over |= a_point > POINT_BAR
            print(f"| | {points} points, one | {a_point:.3f} | | | {POINT_BAR} |", flush=True)
    return over


def flint(command: str, folder: Path) -> Used:
    """Run the command line in a folder."""
    return _run([sys.executable, "-m", "flint", *command.split()], folder)


def _least(command: Sequence[str], folder: Path, repeat: int) -> Used:
    return min((_run(command, folder) for _ in range(repeat)), key=lambda used: used.cpu_s)


def _run(command: Sequence[str], folder: Path) -> Used:
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    per_mb = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / per_mb, said)


if __name__ == "__main__":
    sys.exit(main())
