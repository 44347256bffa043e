"""The page: docs/synth-accuracy.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.sharing.evaluation.bars import (
    GENERATOR,
    MIDDLE,
    bars,
    lost,
    mean_of,
    mean_scores,
)
from benchmarks.sharing.evaluation.evaluate import FoldResult, Options
from benchmarks.sharing.evaluation.measuring.attributes import ATTRIBUTES, Form
from benchmarks.sharing.evaluation.page_texts import (
    CONDITIONS,
    DISTANCES,
    HEAD,
    LEAKAGE,
    NOVELTY,
    PAIRS,
    SURROGATES_TEXT,
    VALIDITY,
)
from benchmarks.sharing.evaluation.real import Real
from benchmarks.sharing.evaluation.scoring.comparison import Compared, Distances, mean_compared
from benchmarks.sharing.evaluation.scoring.distances import BANDWIDTHS
from benchmarks.sharing.evaluation.scoring.leakage import Shared
from benchmarks.sharing.evaluation.scoring.novelty import Novelty
from benchmarks.sharing.evaluation.scoring.surrogate import Score, mean_score
from benchmarks.tables import markdown

Results = Sequence[FoldResult]
#: Broken rules that are named for a method.
_NAMED = 4


def page(real: Real, results: Results, options: Options, seconds: float) -> str:
    """All of it. `seconds` are CPU seconds of this run."""
    parts = [
        HEAD,
        *_bars(results),
        *_corpus(real, results, options),
        *_validity(real, results),
        *_distances(results),
        *_novelty(results),
        *_surrogates(results),
        *_leakage(results),
        *_cost(results, options, seconds),
    ]
    return "\n\n".join(p.strip("\n") for p in parts) + "\n"


def _bars(results: Results) -> Iterator[str]:
    yield "## Bars"
    if GENERATOR not in results[0].methods:
        yield "The generator was not among the methods: the baselines stand alone."
        return
    rows = [[b.says, "met" if b.met else "**missed**", b.found] for b in bars(results)]
    yield markdown(["bar", "", "found"], rows)
    _, worse = lost(results)
    if worse:
        told = [[x.name, f"{x.own:.3f}", f"{x.baseline} {x.best:.3f}"] for x in worse]
        yield "Distances in which a baseline is as good or better:"
        yield markdown(["distance", "generator", "best baseline"], told)


def _corpus(real: Real, results: Results, options: Options) -> Iterator[str]:
    yield "## Families held out"
    left = ", ".join(f"{n} of {why}" for why, n in sorted(real.left_out.items()))
    families = Counter(real.families)
    yield (
        f"{len(real.captures)} captures of {len(families)} families in {len(results)} folds"
        + (f"; left out: {left}." if left else ".")
    )
    yield markdown(
        ["fold: families held out", "held out", "training", "samples"],
        [
            [
                ", ".join(f"{f} {families[f]}" for f in r.fold.families),
                str(len(r.fold.held_out)),
                str(len(r.fold.training)),
                str(r.held),
            ]
            for r in results
        ],
    )
    yield CONDITIONS.format(samples=options.samples, seed=options.seed)


def _validity(real: Real, results: Results) -> Iterator[str]:
    yield "## Validity"
    number = str(len(real.measured))
    own_broken = Counter(rule for m in real.measured for rule in m.broken)
    told = ", ".join(f"{rule} {count}" for rule, count in own_broken.most_common(_NAMED))
    share = sum(m.is_valid for m in real.measured) / len(real.measured)
    rows = [["real captures", number, number, f"{share:.1%}", "", told]]
    for name in results[0].methods:
        own = [r.methods[name] for r in results]
        asked, made, valid = (sum(getattr(m, k) for m in own) for k in ("asked", "made", "valid"))
        broken = sum((Counter(m.broken) for m in own), Counter[str]())
        refused = sum((Counter(m.refused) for m in own), Counter[str]())
        most = ", ".join(f"{rule} {count}" for rule, count in broken.most_common(_NAMED))
        why = ", ".join(f"{reason} {count}" for reason, count in refused.most_common())
        rows.append([name, str(asked), str(made), f"{valid / max(asked, 1):.1%}", why, most])
    yield VALIDITY
    yield markdown(["", "asked for", "made", "valid", "not made", "workloads that break"], rows)


def _distances(results: Results) -> Iterator[str]:
    yield "## Distances"
    yield DISTANCES
    held = sum(r.held for r in results)
    yield f"### Wasserstein-1 and total variation ({held} samples a method)"
    yield _distance_table(results, lambda c: c.transport)
    yield f"### Maximum mean discrepancy ({held} samples a method)"
    yield _distance_table(results, lambda c: c.discrepancy[MIDDLE])
    if GENERATOR in results[0].methods:
        yield _sensitivity(results)
    yield f"### From the workload whose totals were asked for ({held} pairs)"
    yield PAIRS
    yield _paired_table(results)


def _distance_table(results: Results, of: Callable[[Compared], Distances]) -> str:
    means = {name: mean_of(results, name) for name in results[0].methods}
    methods = {name: of(c) for name, c in means.items() if c is not None}
    halves = of(mean_compared([r.halves for r in results]))
    training = of(mean_compared([r.training for r in results]))
    rows = []
    for a in ATTRIBUTES:
        own = _best_bold([methods[m][a.name] for m in methods])
        rows.append([a.name, f"{halves[a.name]:.3f}", f"{training[a.name]:.3f}", *own])
    return markdown(["", "floor: halves", "real training", *methods], rows)


def _paired_table(results: Results) -> str:
    means = {name: mean_of(results, name) for name in results[0].methods}
    methods = {n: c.paired for n, c in means.items() if c is not None and c.paired is not None}
    rows = [[a.name, *_best_bold([methods[m][a.name] for m in methods])] for a in ATTRIBUTES]
    return markdown(["", *methods], rows)


def _best_bold(values: Sequence[float]) -> list[str]:
    return [f"**{v:.3f}**" if v == min(values) else f"{v:.3f}" for v in values]


def _sensitivity(results: Results) -> str:
    """How many distances are won with other bandwidths, and in each fold alone."""
    total, _ = lost(results)
    names = len(ATTRIBUTES)
    by_width = []
    for width, factor in enumerate(BANDWIDTHS):
        worse = sum(x.name.startswith("MMD") for x in lost(results, width)[1])
        by_width.append(f"{names - worse} of {names} with {factor:g} times the bandwidth")
    folds = ", ".join(f"{total - len(lost([r])[1])}" for r in results)
    return (
        f"Better than every baseline in discrepancy: {'; '.join(by_width)}. Of all {total} distances, "
        f"fold by fold: {folds}."
    )


def _novelty(results: Results) -> Iterator[str]:
    yield "## Novelty"
    yield NOVELTY
    methods = {n: [r.methods[n].novelty for r in results] for n in results[0].methods}
    rows = [_novelty_row("real, held out", [r.novelty for r in results])]
    rows += [_novelty_row(n, [x for x in of if x is not None]) for n, of in methods.items()]
    yield markdown(
        ["", "new programs", "new topologies", "unique", "new loop bodies", "new rows"], rows
    )


def _novelty_row(name: str, parts: Sequence[Novelty]) -> list[str]:
    columns: list[list[float]] = [
        [p.programs for p in parts],
        [p.topologies for p in parts],
        [p.unique for p in parts],
        [p.bodies for p in parts if p.bodies is not None],
        [p.rows for p in parts],
    ]
    return [name, *(f"{np.mean(c):.0%}" if c else "" for c in columns)]


def _surrogates(results: Results) -> Iterator[str]:
    yield "## Use: surrogates of step time"
    yield SURROGATES_TEXT.format(tested=sum(r.tested for r in results))
    names = list(results[0].surrogates)
    rows = _surrogate_rows(results)
    for title, field in (
        ("Pearson", "pearson"),
        ("Spearman", "spearman"),
        ("mean error of the natural logarithm", "error"),
    ):
        yield f"### {title}"
        table = [
            [n, str(k), *(f"{getattr(s[p], field):.2f}" for p in names)]
            for n, (s, k) in rows.items()
        ]
        yield markdown(["trained on", "workloads", *names], table)


def _surrogate_rows(results: Results) -> dict[str, tuple[Mapping[str, Score], int]]:
    """By what surrogates are trained on: scores of each, and how many workloads in all folds."""
    names = list(results[0].surrogates)
    rows: dict[str, tuple[Mapping[str, Score], int]] = {
        "real, all training": (
            {n: mean_score([r.all_surrogates[n] for r in results]) for n in names},
            sum(r.all_labelled for r in results),
        ),
        "real, as many": (
            {n: mean_score([r.surrogates[n] for r in results]) for n in names},
            sum(r.labelled for r in results),
        ),
    }
    for method in results[0].methods:
        own = sum(r.methods[method].labelled for r in results)
        rows[method] = mean_scores(results, method), own
    return rows


def _leakage(results: Results) -> Iterator[str]:
    yield "## Leakage"
    yield LEAKAGE
    rows = [_leakage_row("real, held out", [s for r in results for s in r.shared], "")]
    for name in results[0].methods:
        own = [r.methods[name] for r in results]
        known = [m.membership for m in own if m.membership is not None]
        auc = f"{np.mean(known):.2f}" if known else ""
        rows.append(_leakage_row(name, [s for m in own for s in m.shared], auc))
    headings = ["", "programs", "bits alone", "shared", "share", "share, worst tenth", "membership"]
    yield markdown(headings, rows)


def _leakage_row(name: str, shared: Sequence[Shared], auc: str) -> list[str]:
    if not shared:
        return [name, "0", *[""] * 4, auc]
    parts = [s.share for s in shared]
    bits, both = (np.median([getattr(s, k) for s in shared]) for k in ("bits", "shared"))
    worst = np.quantile(parts, 0.9)
    return [
        *(name, str(len(shared)), f"{bits:,.0f}", f"{both:,.0f}"),
        *(f"{np.median(parts):.0%}", f"{worst:.0%}", auc),
    ]


def _cost(results: Results, options: Options, seconds: float) -> Iterator[str]:
    yield "## How it was made"
    told = []
    for name in results[0].methods:
        own = [r.methods[name] for r in results]
        spent = [sum(getattr(m, k) for m in own) for k in ("train_seconds", "sample_seconds")]
        told.append([name, f"{spent[0]:.0f}", f"{spent[1]:.0f}"])
    steps = f" The generator was trained for {options.steps:,} steps in each fold."
    yield (
        f"{seconds:.0f} CPU seconds of one thread, with what the cache had."
        + (steps if GENERATOR in results[0].methods else "")
        + " Making alone, in CPU seconds (0 of what was trained beforehand):"
    )
    yield markdown(["", "training", "sampling"], told)
    named = "; ".join(f"{a.name}: {a.says}" for a in ATTRIBUTES)
    forms = ", ".join(a.name for a in ATTRIBUTES if a.form is Form.NAMED)
    yield f"Attributes: {named}. Total variation is taken of {forms}."
