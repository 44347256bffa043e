"""Train the generator that comes with Flint.

    python -m benchmarks.sharing.corpus /tmp/corpus --count 600
    python -m benchmarks.sharing.default_model /tmp/corpus

Equal captures give an equal file, on one machine and version of PyTorch. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from flint.ir.workload import Workload
from flint.tools.share.synthesize import TRAINING_STEPS, examples_of, learned

TARGET = Path(__file__).parents[2] / "flint/tools/share/synth/default.npz"


def main() -> None:
    """Read the corpus, train, write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing.default_model")
    parser.add_argument("corpus", type=Path, help="a folder of captures with index.json")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    index = json.loads((options.corpus / "index.json").read_text(encoding="utf-8"))
    family = {row["file"]: row["family"] for row in index}
    captures = ((file, Workload.load(options.corpus / file)) for file in sorted(family))
    examples = examples_of(captures, family.__getitem__)
    start = time.process_time()
    generator = learned(examples, seed=options.seed, steps=options.steps, on_progress=_told)
    data = generator.to_bytes()
    options.output.write_bytes(data)
    spent = time.process_time() - start
    print(f"{len(examples)} of {len(family)} captures, {len(generator.vocabulary)} templates")
    print(f"{spent:.0f} CPU s, {len(data):,} bytes: {options.output}")


def _told(step: int, steps: int, templates: float, pointers: float) -> None:
    if step % 100 == 0:
        print(f"{step} of {steps}: {templates:.2f} nats a template, {pointers:.2f} a pointer")


if __name__ == "__main__":
    main()
