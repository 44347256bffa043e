"""What still identifies at each level of anonymising: 12 public models, names, shapes, structure.

    python benchmarks/sharing/levels.py EXAMPLES [WORD...]

EXAMPLES is the folder that `known_examples.py` wrote (`.flint` files and index.json). Of each model, at
each level: how many known workloads look the same by topology, by op classes and by sizes; whether the
nearest neighbour is of its family; whether membership names the workload and the model; the largest
share by which a step time or a memory moved; CPU seconds. With WORDs those files alone that have one.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import View
from flint.tools.share.leaks.report import leaks_of
from flint.tools.share.names.redact import redacted
from flint.tools.share.shapes.perturb import perturbed
from flint.tools.share.structure.exchange import exchanged

KEEP, SEED = 0.02, 1
#: One capture of each of 12 public models that have one program for all ranks.
MODELS = (
    "decode_jax.py_16x4__Llama-3-8B",
    "ring_attention_jax.py_4x16__ring-attention-4096",
    "encoders_jax.py_bert_8x1_training_false_BERT-large",
    "encoders_jax.py_t5_8x4_training_false_T5-base",
    "encoders_jax.py_vit_8x4_training_true_ViT-B_16",
    "llama_jax.py_64x8_parallel_fsdp_tp_Llama-3-8B",
    "llama2_jax.py_64x8_parallel_fsdp_Llama-2-70B",
    "mixtral_jax.py_8x8_dispatch_einsum_Mixtral-8x7B",
    "encoders_jax.py_bert_8x4_training_true_BERT-base",
    "llama_jax.py_32x8_remat_none_Llama-3-70B",
    "encoders_jax.py_t5_32x2_training_true_T5-large",
    "torch_dlrm.py_8__DLRM",
)


class Shared(NamedTuple):
    """A workload at a level, how far numbers of a step moved, and the CPU seconds that it took."""

    level: str
    workload: Workload
    furthest: float
    seconds: float


def main() -> int:
    """Print a row for each model and level, then how often each attack is right."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    index = {e["file"]: e for e in json.loads((folder / "index.json").read_text())}
    chosen = [m for m in MODELS if not words or any(w in m for w in words)]
    print(
        "| model | level | rows | topology | op classes | sizes | family by topology | by op classes | workload | model | moved | CPU s |"
    )
    print("|---|---|--:|--:|--:|--:|---|---|---|---|--:|--:|")
    right: dict[str, list[tuple[bool, ...]]] = defaultdict(list)
    for name in chosen:
        entry = index[f"{name}.flint"]
        for shared in _levels(Workload.load(folder / f"{name}.flint")):
            cells, found = _found(shared, entry)
            right[shared.level].append(found)
            print(
                f"| {entry['model']} {entry['mesh']} | {shared.level} | {' | '.join(cells)} |",
                flush=True,
            )
    for level, found in right.items():
        counts = [sum(column) for column in zip(*found, strict=True)]
        print(
            f"{level}: of {len(found)}, family by topology, by op classes, workload, model: {counts}"
        )
    return 0


def _levels(original: Workload) -> Iterator[Shared]:
    """The levels that the workload allows; what is refused is printed."""
    start = time.process_time()
    named = redacted(original)
    yield Shared("names", named, 0.0, time.process_time() - start)
    start, shaped = time.process_time(), named
    try:
        found = perturbed(named, KEEP / 2, SEED)
        shaped = found.workload
        furthest = max(abs(c.share) for c in found.changes)
        yield Shared("shapes", shaped, furthest, time.process_time() - start)
    except FlintError as error:
        print(f"shapes: {error.code} {error.message}")
    start = time.process_time()
    try:
        other = exchanged(shaped, KEEP, SEED, reference=named)
    except FlintError as error:
        print(f"structure: {error.code} {error.message}; {error.help}")
        return
    furthest = max(abs(c.share) for c in other.changes)
    level = "structure" if shaped is not named else "structure, own sizes"
    yield Shared(level, other.workload, furthest, time.process_time() - start)


def _found(shared: Shared, entry: dict[str, str]) -> tuple[list[str], tuple[bool, ...]]:
    leaks = leaks_of(shared.workload)
    sizes = [str(leaks.anonymity_of(v).size) for v in (View.TOPOLOGY, View.OPS, View.SIZES)]
    guesses = [
        f"{f.nearest.family} {f.distance:.2f}, {f.second.family} {f.second_distance:.2f}"
        for f in leaks.families
    ]
    member = leaks.membership
    models = member.model.models
    named = entry["model"] in models
    found = (
        *(f.nearest.family == entry["family"] for f in leaks.families),
        member.workload.is_member,
        named,
    )
    cells = [
        str(sum(len(p) for p in shared.workload.programs)),
        *sizes,
        *guesses,
        "yes" if member.workload.is_member else "no",
        f"{'yes' if named else 'no'}, of {len(models)}",
        f"{shared.furthest:.1%}",
        f"{shared.seconds:.1f}",
    ]
    return cells, found


if __name__ == "__main__":
    sys.exit(main())
