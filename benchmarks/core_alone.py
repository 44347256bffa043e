"""The core stands without its tools: `python -m benchmarks.core_alone`.

Ten example programs are captured, checked and estimated by this checkout, and by a copy of it without
`flint/tools` and what pyproject.toml registers of it. Traces and JSON are the same to the byte (times
of the run aside). Then the core's tests run in the copy; `--no-tests` leaves them out.

Both run without `site`, so that no editable installation puts the deleted modules back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Arguments of `flint capture`, small meshes: every frontend, a pipeline and pools among them.
PROGRAMS = {
    "llama": ("llama_jax.py", "--mesh", "8x4", "--set", "num_layers=2"),
    "decode": ("decode_jax.py", "--mesh", "2x8", "--set", "model=8b"),
    "mixtral": ("mixtral_jax.py", "--mesh", "8x4", "--set", "num_layers=2"),
    "ring": ("ring_attention_jax.py", "--mesh", "2x4"),
    "spmd": ("spmd_pipeline_jax.py", "--mesh", "4x2"),
    "resnet": ("resnet50_jax.py", "--mesh", "4x2"),
    "pipeline": ("gpt3_jax.py", "--mesh", "pipe=2,data=1,model=2", "--set", "num_layers=4"),
    "pools": ("disaggregated_jax.py", "--mesh", "pool=2,data=1,model=2"),
    "exported": ("torch_llama.py", "--mesh", "4x2", "--set", "num_layers=2"),
    "recorded": ("torch_resnet50_ddp.py", "--mesh", "4", "--world"),
}
#: Tests of the core's rooms, which import no tool.
TESTS = (
    "tests/core/chakra/test_chakra_checker.py", "tests/core/chakra/test_chakra_reader.py",
    "tests/core/chakra/test_chakra_writer.py", "tests/core/cost/test_cluster.py",
    "tests/core/cost/test_cost_collectives.py", "tests/core/cost/test_cost_kernel_table.py",
    "tests/core/cost/test_cost_timeline.py", "tests/core/cost/test_estimate_text.py",
    "tests/core/cli/test_explain.py", "tests/core/test_graph.py",
    "tests/core/partition/test_hlo_programs.py", "tests/core/jax/test_jax_private.py",
    "tests/core/partition/test_sliding.py",
)  # fmt: skip
#: What of them asks for parts of notebooks, which a tool draws.
PAGES = (
    "tests/core/cost/test_estimate_text.py::test_warnings_of_the_capture_are_told_wherever_it_is_looked_at",
)
#: Runs commands in one process: each is a list of arguments, and a file for what it prints.
RUNNER = """
import contextlib, json, sys
from flint.cli.command_line import app
for arguments, file in json.loads(sys.argv[1]):
    with open(file, "w") as out, contextlib.redirect_stdout(out):
        try:
            status = app(arguments, prog_name="flint", standalone_mode=False)
        except SystemExit as end:
            status = end.code
    if status:
        sys.exit(f"flint {' '.join(arguments)}: status {status}")
print(any(name.startswith("flint.tools") for name in sys.modules))
"""


def copy_without_tools(place: Path) -> Path:
    """A copy of the checkout without `flint/tools` and its entry points."""
    copy = place / "core"
    skipped = shutil.ignore_patterns(".git", ".venv", ".ci-venv", "*_cache", "__pycache__", "build")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=skipped)
    shutil.rmtree(copy / "flint" / "tools")
    file = copy / "pyproject.toml"
    file.write_text(re.sub(r'(?m)^\S+ = "flint\.tools\..*\n', "", file.read_text()))
    return copy


def python(root: Path, *arguments: str, cwd: Path) -> str:
    """Run Python on the packages of this environment and the checkout at `root`; gives its output."""
    path = os.pathsep.join([str(root), sysconfig.get_path("purelib")])
    command = [sys.executable, "-S", *arguments]
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
    )
    if done.returncode:
        raise SystemExit(f"{root}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def outputs(root: Path, place: Path) -> dict[str, str]:
    """Digests of what the commands make of the programs, by file."""
    place.mkdir()
    commands = []
    for name, (model, *arguments) in PROGRAMS.items():
        capture = ["capture", str(ROOT / "examples" / model), *arguments, "-o", name]
        commands.append(([*capture, "--json"], f"{name}.capture.json"))
        commands.append((["check", name, "--json"], f"{name}.check.json"))
        estimate = [
            "estimate",
            name,
            "-c",
            "h100-dgx",
            "--unpriced",
            "zero",
            "--no-hints",
            "--json",
        ]
        commands.append((estimate, f"{name}.estimate.json"))
    print(
        f"{root}: tools are loaded: {python(root, '-c', RUNNER, json.dumps(commands), cwd=place)}"
    )
    found = {}
    for file in sorted(p for p in place.rglob("*") if p.is_file()):
        data = file.read_bytes()
        if file.name.endswith(".capture.json"):
            document = json.loads(data)
            del document["timings"]
            data = json.dumps(document).encode()
        found[str(file.relative_to(place))] = hashlib.sha256(data).hexdigest()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Compare, and run the tests. The exit status is 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-tests", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copy = copy_without_tools(place)
        whole, alone = outputs(ROOT, place / "whole"), outputs(copy, place / "alone")
        different = sorted(n for n in {*whole, *alone} if whole.get(n) != alone.get(n))
        print(f"{len(whole)} files of {len(PROGRAMS)} programs, {len(different)} of them differ")
        print(*different, sep="\n")
        if not options.no_tests:
            left_out = [f"--deselect={test}" for test in PAGES]
            print(python(copy, "-m", "pytest", "-q", *left_out, *TESTS, cwd=copy))
    return 1 if different or not whole else 0


if __name__ == "__main__":
    raise SystemExit(main())
