"""Random programs, captured and through XLA's whole compiler: how often do both sides agree?

    python -m benchmarks.differential --seeds 0:200
    python -m benchmarks.differential --seeds 17 --show
    python -m benchmarks.differential --seeds 0:200 --family lookup --shrink
    python -m benchmarks.differential --seeds 0:2000 --json found.json
    python -m benchmarks.differential --choices 2,0,1,0,4 --show

The compiler's plugin has to be installed (`pip install 'flint-ir[xla-gpu]'` or `[xla-tpu]`); what it
made is kept in $FLINT_CACHE_DIR, so that a second run evaluates the captured side only. Prints a
row for each family (percent of its programs with equal collectives, and within the bars of
`outcomes.py`), then causes: the operation, and the kinds of collectives of which the captured side
has more bytes (+) or fewer (-). `--shrink` prints a small program of each cause, as `--choices`.
`--at-least` makes the exit status 1 if a smaller share of programs has equal collectives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compilers.whole import CHIPS
from benchmarks.differential.choices import Choices, shrunk
from benchmarks.differential.outcomes import Judge, Outcome
from benchmarks.differential.programs import BY_NAME, program
from benchmarks.differential.table import as_json, by_cause, by_family, rates, shown
from flint.errors import FlintError
from flint.passes.compilers.plugins import installed
from flint.passes.compilers.target import find_target

#: Programs that are tried for a smaller one of one cause.
MOST_TRIES = 80


def main() -> None:
    """Compare programs of a range of seeds, or the one of a list of choices."""
    options = _options()
    try:
        target = find_target(options.compiler, CHIPS[options.compiler])
        version = installed(target.platform).version
    except FlintError as error:
        print(f"SKIPPED: {error}")
        return
    judge = Judge(options.compiler)
    made: dict[int, Sequence[int]] = {}
    found: dict[int, Outcome] = {}
    for seed, choices in _asked(options):
        found[seed] = judge.outcome(program(choices, options.family))
        made[seed] = choices.made
        if options.show or found[seed].fault == "crash":
            print(f"{seed} {shown(found[seed])}", flush=True)
    print(by_family(list(found.values())), by_cause(found.items()), sep="\n\n")
    if options.shrink:
        _shrink(judge, found, made, options.family)
    if options.json:
        options.json.write_text(as_json(version, list(found.items())), encoding="utf-8")
    compared = sum(not o.fault for o in found.values())
    share = rates(list(found.values()))["equal"] / max(compared, 1)
    print(f"\n{version}: collectives equal {share:.1%} of {compared}")
    if share < options.at_least:
        sys.exit(f"fewer than the {options.at_least:.1%} that were recorded")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one seed")
    parser.add_argument("--choices", default="", help="one program by its choices, with commas")
    parser.add_argument("--family", choices=sorted(BY_NAME), default="")
    parser.add_argument("--compiler", choices=sorted(CHIPS), default="xla-gpu")
    parser.add_argument("--show", action="store_true", help="both sides of every program")
    parser.add_argument("--shrink", action="store_true", help="a small program of every cause")
    parser.add_argument("--json", type=Path, help="write every program's comparison")
    parser.add_argument("--at-least", type=float, default=0.0, help="share of equal programs")
    return parser.parse_args()


def _asked(options: argparse.Namespace) -> list[tuple[int, Choices]]:
    if options.choices:
        return [(0, Choices(given=[int(n) for n in options.choices.split(",")]))]
    first, _, end = options.seeds.partition(":")
    return [(seed, Choices(seed)) for seed in range(int(first), int(end or int(first) + 1))]


def _shrink(
    judge: Judge, found: dict[int, Outcome], made: dict[int, Sequence[int]], family: str
) -> None:
    """Print the smallest program found of each cause."""
    causes = {o.cause: seed for seed, o in reversed(found.items()) if o.cause}
    for cause, seed in causes.items():

        def fails(given: Sequence[int], cause: str = cause) -> bool:
            return judge.outcome(program(Choices(given=given), family)).cause == cause

        small = shrunk(made[seed], fails, MOST_TRIES)
        print(f"\n{cause} (seed {seed}): --choices {','.join(map(str, small)) or 0}")
        print(shown(judge.outcome(program(Choices(given=small), family))), flush=True)


if __name__ == "__main__":
    main()
