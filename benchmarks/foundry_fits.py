"""Whether LLM Foundry's training runs, all of which ran, are said to fit on the GPUs that they ran on.

    python -m benchmarks.foundry_fits              the 15 rows of each GPU that a hash chooses, and MPT-70B on 32
    python -m benchmarks.foundry_fits --all        every row
    python -m benchmarks.foundry_fits --policy in-order

With what users have: the presets of the GPUs, whose memory is the datasheet's, and the stack
`composer` with `benchmarks/models/mpt_fsdp.py`. Prints the peak of each row with what it
is for, and those that do not fit; exits 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from benchmarks.accuracy_steps import captured, estimated
from benchmarks.step_rows import Case, Option, llm_foundry
from flint.backends.cost.memory.memory import MemoryUse

#: The presets of its rows.
PRESETS = ("h100-dgx", "a100-40-dgx")
#: Rows of each GPU without --all.
SAMPLE = 15


def cases(everything: bool) -> Iterator[Case]:
    """The rows, and the run of 70B on 32 H100 that LLM Foundry published later."""
    rows = list(llm_foundry())
    for preset in PRESETS:
        chosen = sorted((c for c in rows if c.preset == preset), key=lambda c: c.order)
        yield from chosen if everything else chosen[:SAMPLE]
    options: dict[str, Option] = {
        "model": "70b", "micro_batch": 2, "accumulate": 16, "recompute": True
    }  # fmt: skip
    yield Case(
        "LLM Foundry", "70b s2048 32 GPUs 16x2", "h100-dgx", "composer", "mpt_fsdp", {"data": 32},
        options, 0.0,
    )  # fmt: skip


def peak(case: Case, policy: str) -> MemoryUse:
    """The memory of a row on the preset of its GPU."""
    found = estimated(case, captured(case), policy or None)
    return found.classes[0].memory


def line(case: Case, use: MemoryUse) -> str:
    """A row of the table, in GiB."""
    parts = ", ".join(f"{k} {v / 2**30:.1f}" for k, v in list(use.breakdown.items())[:4])
    return (
        f"| {case.preset} | {case.label} | {use.peak_bytes / 2**30:.1f} of "
        f"{use.capacity_bytes / 2**30:.1f} | {'yes' if use.fits else 'NO'} | {parts} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--policy", default="", help="another policy of overlap")
    given = parser.parse_args()
    print("| preset | model | GiB | fits | at the peak |\n|---|---|---|---|---|")
    wrong = count = 0
    for case in cases(given.all):
        use = peak(case, given.policy)
        print(line(case, use), flush=True)
        wrong, count = wrong + (not use.fits), count + 1
    print(f"\n{count - wrong} of {count} fit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
