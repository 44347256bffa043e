"""Peak memory of examples at real sizes beside that of XLA's own compilers, which need no device.

    python -m benchmarks.compiled_memory                     # Flint beside what is kept of the compilers
    python -m benchmarks.compiled_memory --write             # and write the table of docs/memory.md
    python -m benchmarks.compiled_memory --compile tpu       # ask a compiler again (pip install flint-ir[xla-tpu])

What the compilers said is in benchmarks/data/compiled_memory/peaks.csv: bytes of arguments, results,
results in the place of arguments, and temporaries, of one device. `half` 0 may be fitted on.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import flint
from benchmarks.tables import markdown
from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest

ROOT = Path(__file__).resolve().parents[1]
PEAKS = ROOT / "benchmarks" / "data" / "compiled_memory" / "peaks.csv"
PAGE = ROOT / "docs" / "memory.md"
BEGIN, END = "<!-- compiled: begin -->\n", "<!-- compiled: end -->\n"
#: A cluster of the chip that each compiler compiled for, and how far Flint may be from it.
CLUSTERS = {"gpu": "h100-dgx", "tpu": "v5p"}
CHIPS = {"gpu": "h100", "tpu": "v5p"}
BARS = {"gpu": 0.05, "tpu": 0.10}


@dataclass(frozen=True)
class Row:
    """A program, and the bytes that a compiler ("gpu", "tpu") says one device needs."""

    name: str
    file: str
    mesh: str
    settings: dict[str, str]
    compiler: str
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Of all that the device holds."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @property
    def half(self) -> int:
        """0: may be fitted on; 1: held out. A hash of the name decides."""
        return zlib.crc32(self.name.encode()) % 2

    def capture(self, compiler: str = "") -> Workload:
        """The program, by Flint or through a compiler (`xla-gpu`, `xla-tpu`)."""
        target = Target.parse(str(ROOT / "examples" / self.file))
        chosen = {"compiler": compiler, "chip": CHIPS[self.compiler]} if compiler else {}
        with importable(target.path.parent):
            loaded = load_step(target, self.mesh, settings=self.settings)
            return flint.trace(loaded.step, loaded.mesh, **chosen).workload

    def estimated_bytes(self, workload: Workload) -> int:
        """The peak that Flint says, with the stack that follows from the program."""
        found = estimate(workload, EstimateRequest(Cluster.load(CLUSTERS[self.compiler])))
        return max(c.memory.peak_bytes for c in found.classes)


def rows() -> list[Row]:
    """All that is kept."""
    with PEAKS.open(encoding="utf-8", newline="") as file:
        return [_row(r) for r in csv.DictReader(file)]


def _row(r: dict[str, str]) -> Row:
    settings = dict(part.split("=", 1) for part in r["settings"].split())
    sizes = (int(r[f"{n}_bytes"]) for n in ("argument", "output", "alias", "temp"))
    return Row(r["program"], r["file"], r["mesh"], settings, r["compiler"], *sizes)


def compiled(compiler: str) -> Iterator[Row]:
    """The rows of a compiler, asked again. Raises FlintError FL410 where it is not installed."""
    for row in rows():
        if row.compiler == compiler:
            by = row.capture(f"xla-{compiler}").compiled_by
            assert by is not None and by.memory is not None, "one module was compiled"
            m = by.memory
            yield Row(
                row.name, row.file, row.mesh, row.settings, compiler,
                m.argument_bytes, m.output_bytes, m.alias_bytes, m.temp_bytes,
            )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Peak memory beside XLA's compilers.")
    parser.add_argument("--write", action="store_true", help="write the table of docs/memory.md")
    parser.add_argument("--compile", choices=CLUSTERS, help="ask this compiler again")
    options = parser.parse_args(arguments)
    if options.compile:
        for row in compiled(options.compile):
            print(row.name, row.peak_bytes, flush=True)
        return 0
    text = table()
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    return 0


def table() -> str:
    """Markdown: every program beside both compilers, and how many are within the bars."""
    found: dict[str, dict[str, list[str]]] = {}
    within = {c: [0, 0] for c in CLUSTERS}
    for row in rows():
        mine = row.estimated_bytes(row.capture())
        error = mine / row.peak_bytes - 1
        within[row.compiler][0] += abs(error) <= BARS[row.compiler]
        within[row.compiler][1] += 1
        mark = "" if abs(error) <= BARS[row.compiler] else " *"
        cells = found.setdefault(row.name, {})
        cells[row.compiler] = [f"{row.peak_bytes / 1e6:,.0f}", f"{100 * error:+.1f} %{mark}"]
    lines = [[n, *(x for k in CLUSTERS for x in c.get(k, ["", ""]))] for n, c in found.items()]
    head = ["program", "XLA:GPU, MB", "Flint", "XLA:TPU, MB", "Flint"]
    said = [
        f"{good} of {count} within {BARS[c]:.0%} of XLA:{c.upper()}"
        for c, (good, count) in within.items()
    ]
    return markdown(head, lines) + "\n\n" + "; ".join(said) + ".\n"


if __name__ == "__main__":
    raise SystemExit(main())
