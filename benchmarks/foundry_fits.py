"""Whether LLM Foundry's training runs, all of which ran, are said to fit on the GPUs that they ran on.

    python -m benchmarks.foundry_fits              the 15 rows of each GPU that a hash chooses, and MPT-70B on 32
    python -m benchmarks.foundry_fits --all        every row
    python -m benchmarks.foundry_fits --policy in-order

With what users have: the presets of the GPUs, whose memory is the datasheet's, and the kernels of
`benchmarks/models/mpt_fsdp.py` as `inductor` launches them. Prints the peak of each row with what it
is for, and those that do not fit; exits 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.accuracy_steps import captured, cluster_of
from benchmarks.models import mpt_fsdp
from benchmarks.step_rows import Case, llm_foundry
from flint.backends.cost.estimate import estimate
from flint.backends.cost.memory.memory import MemoryUse

#: Preset of each system of `step_rows`.
PRESETS = {"foundry-h100": "h100-dgx", "foundry-a100-40": "a100-40-dgx"}
#: Rows of each GPU without --all.
SAMPLE = 15


def cases(everything: bool) -> Iterator[Case]:
    """The rows, and the run of 70B on 32 H100 that LLM Foundry published later."""
    rows = list(llm_foundry())
    for system in PRESETS:
        chosen = sorted((c for c in rows if c.system == system), key=lambda c: c.order)
        yield from chosen if everything else chosen[:SAMPLE]
    hidden, layers, heads = mpt_fsdp.SIZES["70b"]
    c = mpt_fsdp.Mpt(hidden, layers, heads, micro_batch=2, accumulate=16, recompute=True)
    step = partial(mpt_fsdp.step, c=c)
    yield Case("LLM Foundry", "70b s2048 32 GPUs 16x2", "foundry-h100", {"data": 32}, step, 0.0)


def peak(case: Case, policy: str) -> MemoryUse:
    """The memory of a row on the preset of its GPU."""
    cluster = cluster_of(PRESETS[case.system])
    found = estimate(captured(case), cluster, profile=case.profile, policy=policy or case.policy)
    return found.classes[0].memory


def line(case: Case, use: MemoryUse) -> str:
    """A row of the table, in GiB."""
    parts = ", ".join(f"{k} {v / 2**30:.1f}" for k, v in list(use.breakdown.items())[:4])
    return (
        f"| {PRESETS[case.system]} | {case.label} | {use.peak_bytes / 2**30:.1f} of "
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
