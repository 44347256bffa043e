"""Anonymise every example of examples/README.md, and hold what was written against the original.

    python benchmarks/sharing/anonymize_examples.py [WORD...]

Of each: words of the original in any byte of what was written, estimates on every preset, simulated time (meshes of up to 64 ranks),
CPU seconds of the command. With WORDs those examples alone whose command has one of them. Exit status 1 where anything differs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.estimate import estimate
from flint.cluster.load import preset_names
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.share.anonymize import anonymize
from flint.tools.share.inputs import read_source
from flint.tools.share.leaks.strings import texts_of, words_of

ROOT = Path(__file__).parents[2]
#: Larger meshes are written for one rank of each class, and not simulated.
MOST_RANKS = 64


def main() -> int:
    """Print a row for each example."""
    commands = re.findall(r"`flint (capture [^`]+)`", (ROOT / "examples/README.md").read_text())
    chosen = [c for c in commands if not sys.argv[1:] or any(w in c for w in sys.argv[1:])]
    print("| example | words left | estimates equal | simulated | CPU s |\n|---|--:|--:|---|--:|")
    bad = 0
    for command in chosen:
        with tempfile.TemporaryDirectory() as folder:
            row, is_good = _row(command, Path(folder))
        bad += not is_good
        print(row, flush=True)
    print(f"\n{len(chosen) - bad} of {len(chosen)} as they were, without a word of the original")
    return 1 if bad else 0


def _row(command: str, folder: Path) -> tuple[str, bool]:
    own, shared = folder / "own", folder / "shared"
    before, _, script = command.partition(" -- ")
    arguments = [*shlex.split(before), "-q", "-o", str(own)]
    workload = _captured([*arguments, "--ranks", "classes"], script, own)
    is_small = workload.mesh.size <= MOST_RANKS
    if is_small:
        workload = _captured(arguments, script, own)
    start = time.process_time()
    found = anonymize(own)
    found.save(shared)
    seconds = time.process_time() - start
    left = _words_left(workload, own, shared)
    equal, estimates = _estimates(workload, found.workload)
    simulated = _simulated(own, shared) if is_small else "-"
    said = ", ".join(sorted(left)[:5])
    row = f"| `{command}` | {len(left)} {said} | {equal} of {estimates} | {simulated} | {seconds:.2f} |"
    return row, not left and equal == estimates and simulated in ("-", "equal")


def _captured(arguments: list[str], script: str, own: Path) -> Workload:
    command = [
        sys.executable,
        "-m",
        "flint",
        *arguments,
        *(["--", *shlex.split(script)] if script else []),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = read_source(own).workload
    assert found is not None
    return found


def _words_left(workload: Workload, own: Path, shared: Path) -> set[str]:
    """Words of the original's texts that are in bytes of files of `shared`, inside zips too."""
    words = words_of(t.text for t in texts_of(workload))
    kept = {w for w in words if len(w) > 3}
    plain = b"\n".join(_content(p) for p in sorted(shared.iterdir())).lower()
    found = {
        w
        for w in kept
        if re.search(rb"(?<![a-z0-9])" + re.escape(w).encode() + rb"(?![a-z0-9])", plain)
    }
    return found - _of_flint(own)


def _of_flint(own: Path) -> set[str]:
    """Words that Flint writes into the files of every capture, whatever it is of."""
    text = (own / "README.txt").read_text() + (own / "system.json").read_text()
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def _content(path: Path) -> bytes:
    if path.suffix != ".flint":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"\n".join(archive.read(name) for name in archive.namelist())


def _estimates(one: Workload, other: Workload) -> tuple[int, int]:
    """How many presets give both the same numbers, and how many give any."""
    equal = tried = 0
    for name in preset_names():
        try:
            first = estimate(one, EstimateRequest(load_cluster(name), unpriced_is_zero=True))
        except FlintError:
            continue  # the mesh does not fit on the machine, for both
        second = estimate(other, EstimateRequest(load_cluster(name), unpriced_is_zero=True))
        tried += 1
        equal += all(
            (a.end_ns, a.memory.total_bytes, a.memory.breakdown)
            == (b.end_ns, b.memory.total_bytes, b.memory.breakdown)
            for a, b in zip(first.classes, second.classes, strict=True)
        )
    return equal, tried


def _simulated(own: Path, shared: Path) -> str:
    """Whether ASTRA-sim's rules end at the same nanosecond."""
    times = [simulate_traces(p / "trace", p / "network.yml").end_ns for p in (own, shared)]
    return "equal" if times[0] == times[1] else "different"


if __name__ == "__main__":
    sys.exit(main())
