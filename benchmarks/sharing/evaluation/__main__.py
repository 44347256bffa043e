"""Evaluate, and write the page: `python -m benchmarks.sharing.evaluation CORPUS -o docs/synth-accuracy.md`.

Without Flint's generator (`--without-generator`) the baselines stand alone. What was measured of a
workload is kept in the folder of `--cache`, and trained generators in that of `--models`: `--train 0`, ...
trains that of one fold beforehand, so that several processes can.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # CPU seconds are told: they are those of one thread

from benchmarks.sharing.evaluation.bars import GENERATOR
from benchmarks.sharing.evaluation.baselines import BASELINES
from benchmarks.sharing.evaluation.evaluate import Options, evaluate_fold
from benchmarks.sharing.evaluation.folds import folds
from benchmarks.sharing.evaluation.generator import flint_generator
from benchmarks.sharing.evaluation.measuring.cache import Cache
from benchmarks.sharing.evaluation.page import page
from benchmarks.sharing.evaluation.real import Real


def main() -> None:
    """Measure the corpus, evaluate each fold, write the page."""
    options = _options()
    start = time.process_time()
    cache = Cache(options.cache)
    real = Real.of(options.corpus, options.most_rows, cache)
    print(
        f"{len(real.captures)} captures: {time.process_time() - start:.0f} CPU s", file=sys.stderr
    )
    found = folds(real.families, options.folds)
    if options.train is not None:
        captures = [real.captures[i] for i in found[options.train].training]
        flint_generator(options.steps, options.models)(captures, options.seed)
        return
    methods = dict(BASELINES)
    if not options.without_generator:
        methods = {GENERATOR: flint_generator(options.steps, options.models), **methods}
    chosen = Options(options.samples, options.train_samples, options.seed, options.steps)
    results = []
    for fold in found:
        results.append(evaluate_fold(real, fold, methods, chosen, cache))
        spent = time.process_time() - start
        print(f"{', '.join(fold.families)}: {spent:.0f} CPU s", file=sys.stderr)
    text = page(real, results, chosen, time.process_time() - start)
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing.evaluation")
    parser.add_argument("corpus", type=Path, help="a folder of captures with index.json")
    parser.add_argument("-o", "--output", type=Path, help="the page (else standard output)")
    parser.add_argument("--cache", type=Path, help="a folder for what was measured")
    parser.add_argument("--models", type=Path, help="a folder for what was trained")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--most-rows", type=int, default=8000, help="longer captures are left out")
    parser.add_argument("--samples", type=int, default=200, help="of a fold, at most")
    parser.add_argument("--train-samples", type=int, default=125, help="of a surrogate, in a fold")
    parser.add_argument("--steps", type=int, default=1500, help="of one training of the generator")
    parser.add_argument("--train", type=int, help="train for the fold of this number alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-generator", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
