"""Give Flint bad inputs of every kind, and count what it does with them.

    python -m benchmarks.bad_inputs --seed 0 --cases 3000

Good inputs of every reader (see `KINDS`) are spoilt by chance. Each case runs in a fork with two gigabytes beyond what imports take, and 30 CPU seconds.
Exit status 1 if anything ended otherwise than it should: exit 70, a hang, too much memory, a signal,
control characters printed, or what was accepted holding a number that is negative, not finite,
or against another one (`bad/sound.py`). `--kind flint --only 17 -v` runs one case again and
prints what it said; `--keep DIR` leaves the files of failed cases there.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: threads do not survive a fork

import argparse
import gc
import pickle
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.bad import (
    clusters,
    flint_files,
    measurements,
    models,
    modules,
    options,
    profiles,
    running,
    stored,
    traces,
)
from benchmarks.bad.bases import make_bases
from benchmarks.bad.case import Case, Outcome, Special, Verdict

Maker = Callable[[random.Random, int, Path], Case]
#: Kinds of input: what makes a case, and which share of all cases it has.
KINDS: dict[str, tuple[Maker, float]] = {
    "models": (models.case, 0.05),
    "options": (options.case, 0.07),
    "stablehlo": (modules.stablehlo, 0.06),
    "hlo": (modules.hlo, 0.06),
    "flint": (flint_files.case, 0.16),
    "measured": (profiles.measured, 0.07),
    "clusters": (clusters.case, 0.08),
    "traces": (traces.case, 0.08),
    "nsight": (profiles.nsight, 0.06),
    "xplane": (profiles.xplane, 0.05),
    "kineto": (profiles.kineto, 0.04),
    "executions": (profiles.execution_trace, 0.05),
    "studies": (stored.study, 0.05),
    "locks": (stored.lock, 0.03),
    "projects": (stored.project, 0.02),
    "simulators": (stored.simulator, 0.02),
    "measurements": (measurements.case, 0.02),
    "routings": (measurements.loads, 0.01),
}


def make_case(kind: str, seed: int, number: int, bases: Path) -> Case:
    """The case of that number: the same for the same seed, whatever else is run."""
    return KINDS[kind][0](random.Random(f"{seed} {kind} {number}"), number, bases)


def main() -> int:
    """Run the cases and print a table; 1 if any is not fine."""
    arguments = _arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flint-bad-") as name:
        folder = Path(name)
        bases = Path(arguments.bases) if arguments.bases else folder / "bases"
        if not arguments.bases:
            bases.mkdir()
            make_bases(bases)
        wanted = [
            (kind, number)
            for kind, (_, share) in KINDS.items()
            if arguments.kind in (None, kind)
            for number in _numbers(arguments, share)
        ]
        running.warm_up()
        gc.freeze()  # a collection in a fork would write to, and so copy, all that was imported
        results = list(_in_processes(wanted, arguments, bases, folder))
    _print_table(results)
    print(f"{len(results)} cases, seed {arguments.seed}, {time.monotonic() - started:.0f} s")
    return int(any(not outcome.verdict.fine for _, outcome in results))


def _numbers(arguments: argparse.Namespace, share: float) -> range:
    if arguments.only is not None:
        return range(arguments.only, arguments.only + 1)
    part = 1.0 if arguments.kind else share
    return range(round(arguments.cases * part))


def _in_processes(
    wanted: list[tuple[str, int]], arguments: argparse.Namespace, bases: Path, folder: Path
) -> Iterator[tuple[Case, Outcome]]:
    """Every process takes each n-th case, and hands its outcomes over at its end."""
    running.unbuffered()
    pids = []
    for part in range(arguments.processes):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                mine = (
                    make_case(k, arguments.seed, n, bases)
                    for k, n in wanted[part :: arguments.processes]
                )
                found = [_noted(c, o, arguments) for c, o in running.run_all(mine, folder)]
                (folder / f"{part}.pickle").write_bytes(pickle.dumps(found))
                code = 0
            except BaseException:  # noqa: BLE001 - the fork ends here
                traceback.print_exc()
            finally:
                running.unbuffered()
                os._exit(code)
        pids.append(pid)
    for part, pid in enumerate(pids):
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise SystemExit("a process of the generator itself died")
        yield from pickle.loads((folder / f"{part}.pickle").read_bytes())


def _noted(case: Case, outcome: Outcome, arguments: argparse.Namespace) -> tuple[Case, Outcome]:
    """The case without its files; what is not fine is printed at once."""
    if arguments.verbose or not outcome.verdict.fine:
        print(f"--- {case.kind} {case.number}: {outcome.verdict.title}: {case.change[:200]}")
        print(f"    flint {' '.join(outcome.command)[:300]}  ({outcome.cpu_seconds:.2f} CPU s)")
        lines = outcome.printed.strip().splitlines()
        print("\n".join(f"    {line[:200]!r}" for line in lines[-arguments.lines :]), flush=True)
    if arguments.accepted and outcome.verdict is Verdict.ACCEPTED:
        print(f"accepted {case.kind} {case.number}: {case.change[:200]!r}")
    if arguments.keep and not outcome.verdict.fine:
        _keep(Path(arguments.keep) / f"{case.kind}-{case.number}", case)
    return Case(case.kind, case.number, case.change, {}, case.commands), outcome


def _keep(place: Path, case: Case) -> None:
    for name, content in case.files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if not isinstance(content, Special) else content.value.encode())


def _print_table(results: list[tuple[Case, Outcome]]) -> None:
    counts = Counter((case.kind, outcome.verdict) for case, outcome in results)
    shown = [v for v in Verdict if v.fine or any(counts[k, v] for k in KINDS)]
    print("| input | tried | " + " | ".join(v.title for v in shown) + " | CPU s |")
    print("|---|" + "--:|" * (len(shown) + 2))
    for kind in KINDS:
        of_kind = [o for c, o in results if c.kind == kind]
        if of_kind:
            cells = [str(counts[kind, v]) for v in shown]
            used = sum(o.cpu_seconds for o in of_kind)
            print(f"| {kind} | {len(of_kind)} | " + " | ".join(cells) + f" | {used:.0f} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--cases", type=int, default=3000, help="how many, over all kinds")
    parser.add_argument("--kind", choices=list(KINDS), help="cases of this kind only")
    parser.add_argument("--only", type=int, metavar="N", help="the case of this number only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bases", metavar="DIR", help="what `benchmarks.bad.bases` wrote")
    parser.add_argument("--keep", metavar="DIR", help="leave the files of failed cases there")
    parser.add_argument("--accepted", action="store_true", help="name the cases that are accepted")
    parser.add_argument("--lines", type=int, default=3, help="lines printed of each failed case")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every case")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
