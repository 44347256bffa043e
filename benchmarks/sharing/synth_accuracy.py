"""Samples of `flint synth` against captures of families that it does not remember, beside copies.

    python -m benchmarks.sharing.synth_accuracy

Writes its table into `docs/share.md`. Each program that comes with Flint is held back in turn, with all programs of its family.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.accuracy_summary import between
from benchmarks.sharing.remembered import CAPTURES
from flint.errors import FlintError
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.tools.share.shapes.perturb import step_on
from flint.tools.share.synth.conditions import Conditions, conditions_of
from flint.tools.share.synth.remembered import Remembered, distance, structure_of
from flint.tools.share.synth.resize import resized
from flint.tools.share.synth.synthesize import sample

PAGE = Path(__file__).parents[2] / "docs/share.md"
MACHINE, SEEDS = "h100-dgx", 2
#: A capture and its family: what its name says.
_FAMILIES = ("llama", "decode", "mixtral", "bert", "t5", "vit", "ring", "spmd")


def main() -> None:
    """Print the table, and write the page."""
    whole = Remembered.load()
    assert len(whole.workloads) == len(CAPTURES)
    found: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for held, capture in zip(whole.workloads, CAPTURES, strict=True):
        left = _without(whole, _family(capture))
        for seed in range(SEEDS):
            try:
                made = _made(left, _totals(held), seed)
            except FlintError as error:
                print(f"{capture}: {error.message}")
                continue
            for method, workload in made.items():
                found[method].append(_distances(held, workload, left))
    columns = (
        *("method", "made", "off by: rows", "parameters", "bytes sent", "step time"),
        *("classes", "neighborhoods", "of remembered ones"),
    )
    table = f"| {' | '.join(columns)} |\n|---|{'--:|' * (len(columns) - 1)}\n"
    table += "".join(_line(method, pairs) for method, pairs in found.items())
    print(table)
    PAGE.write_text(between(PAGE.read_text("utf-8"), "synth", table), encoding="utf-8")


def _family(capture: str) -> str:
    return next(f for f in _FAMILIES if f in capture)


def _without(whole: Remembered, family: str) -> Remembered:
    pairs = zip(whole.workloads, CAPTURES, strict=True)
    return Remembered(tuple(w for w, name in pairs if _family(name) != family))


def _totals(workload: Workload) -> Conditions:
    has = conditions_of(workload)
    return Conditions(
        mesh=has.mesh, flops=has.flops, depth=has.depth, memory_bytes=has.memory_bytes
    )


def _made(left: Remembered, asked: Conditions, seed: int) -> dict[str, Workload]:
    """What each method makes; copies begin with the program that the sample began with."""
    made = sample(left, asked, seed).workload
    rows = [len(w.programs[0]) for w in left.workloads]
    source = left.workloads[rows.index(len(made.programs[0]))]
    sized = resized(source, asked, np.random.default_rng(seed))
    return {"synth": made, "copy and resize": sized, "copy": source}


def _distances(held: Workload, made: Workload, left: Remembered) -> Mapping[str, float]:
    one, other = held.programs[0], made.programs[0]
    structure = structure_of(other)
    found = {
        "rows": _factor(len(one), len(other)),
        "parameters": _factor(totals(one).parameter_bytes, totals(other).parameter_bytes),
        "sent": _factor(*(sum(conditions_of(w).axis_bytes.values()) for w in (held, made))),
        "classes": _classes_apart(one, other),
        "neighbourhoods": distance(structure, [structure_of(one)]),
        "remembered": distance(structure, left.structures),
    }
    steps = [step_on(w, MACHINE).get(f"step time on {MACHINE}") for w in (held, made)]
    if steps[0] and steps[1]:
        found["step"] = _factor(steps[0], steps[1])
    return found


def _factor(one: float, other: float) -> float:
    return math.exp(abs(math.log(max(one, 1) / max(other, 1))))


def _classes_apart(one: Program, other: Program) -> float:
    shares = []
    for program in (one, other):
        counts = Counter(program.op[program.kind >= Kind.COMPUTE].tolist())
        shares.append({c: n / sum(counts.values()) for c, n in counts.items()})
    keys = shares[0].keys() | shares[1].keys()
    return sum(abs(shares[0].get(c, 0.0) - shares[1].get(c, 0.0)) for c in keys) / 2


def _line(name: str, found: list[Mapping[str, float]]) -> str:
    asked = SEEDS * len(CAPTURES)
    cells = [f"{len(found)} of {asked}"]
    for key in ("rows", "parameters", "sent", "step", "classes", "neighbourhoods", "remembered"):
        cells.append(f"{median(f[key] for f in found if key in f):.2f}")
    return f"| {name} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main()
