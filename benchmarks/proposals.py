"""Proposals against recipes that were written down first: `python -m benchmarks.proposals [MODEL@DEVICES@CLUSTER ...]`.

`RECIPES` are what handbooks say of each family: MaxText's rules (fsdp, fsdp + tensor), torchtitan (FSDP2 with
tensor parallelism of at most a node), Megatron (tensor parallelism in the node, data parallelism outside), experts
over devices of a node, DLRM's tables by table and by row. They were fixed before the search was run, and they are captured
by the same means as proposals. A line: the proposal's step over that of the best recipe that fits, and over data
parallel and fully sharded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import flint
from benchmarks import proposal_models as models
from flint.cluster.named import load_cluster
from flint.tools.explore.propose.api import propose
from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.cost import Costs
from flint.tools.explore.propose.judge import Judge, Judged
from flint.tools.explore.propose.origin import origin_of
from flint.tools.explore.propose.plan import AtRest, ShardingPlan
from flint.tools.explore.propose.search import PricedPlan
from flint.tools.explore.result import Status

#: A dimension of an argument, which stands for all that are split with it.
Dimension = tuple[str, int]


@dataclass(frozen=True)
class Recipe:
    """Devices of the inner axis, what it splits, and whether weights rest in parts over the others."""

    name: str
    model: int
    splits: tuple[Dimension, ...]
    rest: AtRest


_ATTENTION = "params['layers']['attention']"
_HEADS: Dimension = (f"{_ATTENTION}['k']", 2)
_FFN: Dimension = ("params['layers']['inside']['up']", 2)
_VOCAB: tuple[Dimension, ...] = (("params['embed']", 0), ("params['head']", 1))
_PLAIN = (
    Recipe("data parallel", 1, (), AtRest.NOTHING),
    Recipe("ZeRO-1", 1, (), AtRest.STATE),
    Recipe("FSDP", 1, (), AtRest.ALL),
)


def _tensor(*splits: Dimension, most: int = 8) -> tuple[Recipe, ...]:
    """Tensor parallelism in the node, with FSDP (MaxText, torchtitan) and data parallelism (Megatron)."""
    sizes = [n for n in (2, 4, 8) if n <= most]
    return (*_PLAIN, *(Recipe(f"TP {n} + FSDP", n, splits, AtRest.ALL) for n in sizes),
            *(Recipe(f"TP {n} + ZeRO-1", n, splits, AtRest.STATE) for n in sizes))  # fmt: skip


_EXPERT: Dimension = ("params['layers']['inside']['up']", 1)
RECIPES: dict[str, tuple[Recipe, ...]] = {
    "decoder": _tensor(_HEADS, _FFN, *_VOCAB),
    "moe": (*_PLAIN, Recipe("EP 8 + FSDP", 8, (_EXPERT,), AtRest.ALL), Recipe("EP 8 + ZeRO-1", 8, (_EXPERT,), AtRest.STATE),
            Recipe("EP 8 + TP + FSDP", 8, (_EXPERT, _HEADS), AtRest.ALL)),
    "vit": _tensor(_HEADS, _FFN),
    "diffusion": _tensor(_HEADS, _FFN),
    "seq2seq": _tensor(("params['encoder']['attention']['k']", 2), ("params['decoder']['attention']['k']", 2),
                       ("params['decoder']['cross']['k']", 2), ("params['encoder']['inside']['up']", 2),
                       ("params['decoder']['inside']['up']", 2), *_VOCAB),
    "state_space": _tensor(("params['layers']['in']", 2), *_VOCAB),
    "dlrm": (*_PLAIN, Recipe("by table", 8, (("params['tables']", 0),), AtRest.NOTHING),
             Recipe("by row", 8, (("params['tables']", 1),), AtRest.NOTHING),
             Recipe("by table, rest in parts", 8, (("params['tables']", 0),), AtRest.ALL)),
    "convolutions": _PLAIN,
    "graphs": _tensor(("params['layers']['message']", 2)),
}  # fmt: skip
#: Global batch for a device.
BATCH = {"decoder": 1, "moe": 2, "vit": 32, "diffusion": 32, "seq2seq": 8, "state_space": 2, "dlrm": 1024,
         "convolutions": 32, "graphs": 4}  # fmt: skip
CASES = [f"{m}@{n}@{c}" for c, sizes in (("h100-dgx", (8, 64, 512)), ("b200-dgx", (64,)), ("v5p", (64,)))
         for m in RECIPES for n in sizes]  # fmt: skip


def plan_of(recipe: Recipe, blank: Blank, devices: int) -> ShardingPlan:
    """A recipe as a plan."""
    assert blank.batch is not None, "the program has no batch"
    colours = []
    for name, at in recipe.splits:
        dims = blank.reading.arguments[blank.names.index(name)]
        colours.append(blank.reading.colours.of(dims[at]))
    axes = (("data", devices // recipe.model), ("model", recipe.model))
    over = ("data",) if recipe.rest is not AtRest.NOTHING else ()
    return ShardingPlan(axes, ((blank.batch,), tuple(colours)), recipe.rest, over)


def compared(case: str, tries: int) -> str:
    """A row of the table."""
    name, count, cluster = case.split("@")
    devices = int(count)
    step, args = getattr(models, name)(BATCH[name] * devices)
    of = flint.Step(
        step, args, donate_argnums=(0, 1), platform="tpu" if cluster.startswith("v") else "cuda"
    )
    origin, on = origin_of(of), load_cluster(cluster)
    costs = Costs(origin.blank, on)
    plans = [plan_of(r, origin.blank, devices) for r in RECIPES[name] if r.model <= devices]
    judge = Judge(origin, on, cluster, int(on.chip.memory_bytes.value))
    recipes = dict(
        zip(RECIPES[name], judge.judge([PricedPlan(p, costs.of(p)) for p in plans]), strict=False)
    )
    found = propose(of, devices=devices, cluster=cluster, tries=tries)
    return _row(case, recipes, found.best, found.said(found.plan))


def _row(case: str, recipes: dict[Recipe, Judged], found: Judged, said: str) -> str:
    fit = {r: j.result.step_time_ns for r, j in recipes.items() if j.result.status is Status.FITS}
    ours = found.result.step_time_ns
    best = min(fit, key=lambda r: fit[r], default=None)
    plain = {r.name: fit[r] for r in fit if r.model == 1}
    ratios = [
        f"{ours / plain[n]:.3f}" if n in plain else "does not fit"
        for n in ("data parallel", "FSDP")
    ]
    against = f"{best.name} | {ours / fit[best]:.3f}" if best else "none fits | -"
    return f"| {case.replace('@', ' | ')} | {ours / 1e6:.1f} ms | {against} | {' | '.join(ratios)} | {found.plan.mesh}: {said} |"


def main(cases: list[str], tries: int = 12) -> None:
    """Print the table, a row as soon as it is known."""
    print(
        "| model | devices | cluster | proposal | best recipe | over it | over DP | over FSDP | what is proposed |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for case in cases or CASES:
        try:
            print(compared(case, tries), flush=True)
        except flint.FlintError as error:
            print(f"| {case.replace('@', ' | ')} | {error.code}: {error.message} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
