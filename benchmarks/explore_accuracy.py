"""Write docs/explore-accuracy.md from what benchmarks.explore_rows and benchmarks.explore_405b found.

python -m benchmarks.explore_rows rows.jsonl
python -m benchmarks.explore_405b points.jsonl
python -m benchmarks.explore_accuracy rows.jsonl points.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import explore_405b, explore_ranking
from benchmarks.explore_rows import read_rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explore-accuracy.md"

HEAD = """\
# How well the first row is chosen

`flint explore` puts configurations in an order and recommends the first. This page holds that order
against measurements, and says where it is wrong. Written by `python -m benchmarks.explore_accuracy`.

## vTrain: 771 measured configurations

Megatron-DeepSpeed on A100, one node of 2, 4 and 8 GPUs and 64 nodes (512 GPUs), each priced as on the
[accuracy page](accuracy.md): preset `a100-80-hdr4`, stack `megatron-deepspeed`, model code
`benchmarks/models/gpt_megatron.py`. A group holds at least six configurations between which one may
choose. (a) One model on one number of GPUs: what differs is the mesh, the microbatch and the batch, so
time is that for a sequence. (b) The batch is given as well: the choice of a mesh and a microbatch
alone, which is harder, for its members are closer together. Constants of the stack were fitted on half
of the rows of one node; the other half and all of 512 GPUs are shown by themselves.

*Spearman* is the rank correlation of the order with the measured one: median and lowest of the groups.
*First within 5 %* is the share of groups in which what stands first was measured at most 5 % slower than
the best; *worst first* is how much slower it was where that was worst. Where an order leaves several
first, their mean counts. A choice by lot stands below.
"""

BETWEEN = """
Where it is wrong:

- **512 GPUs.** The six configurations with tensor parallelism 2 are estimated 27 % too fast, those with 4
  by 7 %, while 8 is 4 % too slow: hence the lowest correlation of (a), although what stands first is the
  best measured. What slowed them down is not in the data.
- **One node, the batch given (b).** Pipelines of two stages without tensor parallelism are estimated too
  fast, mean -3 %, four stages -13 %, and tensor parallelism 2 and 4 too slow (+2 %, +9 %), so that
  between the two the wrong one is often first. Half of these steps take less than 250 ms, and
  the host, which launches a kernel in 50 us, is most of that. In 51 of the 56 groups the 80 % intervals of the choice and
  of the best overlap: the estimate does not claim to tell them apart.
- A rule of thumb that is made for large models (most tensor parallelism first) is worse than a lot here:
  these models are small.

No row is said not to fit (all ran).

## Llama 3.1 405B on 8,192 and 16,384 H100

Table 4 of "The Llama 3 Herd of Models" (arXiv 2407.21783): tensor parallelism 8, pipeline 16, data 64
(32 sequences each) on 8,192 and data 128 (16 sequences each) on 16,384, 16M tokens a step; 430 and 400
TFLOP/s a GPU were measured. `python -m benchmarks.explore_405b` explores all meshes of pipe, data and
model (up to 8 over "model": there are eight key-value heads), 1, 2 and 4 stages for each pipeline rank,
one and two sequences in a microbatch, and four kinds of recomputation, on `h100-dgx` with the stack
`megatron` and its distributed optimizer. Points whose weights, gradients and kept activations alone
exceed a device are counted as too large without a capture.
"""

END = """
The paper's mesh comes first, so it is among the best 3 % whatever is counted. The rest differs from what
Meta ran, and the page should not be read as if it did not:

- Meta ran without recomputation. Here that does not fit with 16 stages: 60 GiB of activations that 16
  microbatches keep, and **two** sums of gradients in 32 bits. The second one, 12 GiB, is what a scan over
  layers returns before it is added; Megatron adds in place, and Flint's memory does not know that. So the
  points with some recomputation stand first, and steps are 37 and 26 % longer than measured: 430 and
  400 TFLOP/s a GPU are 43 and 41 % of the peak.
- `megatron` lets computation wait for every collective of tensor parallelism. Meta's software overlapped
  some of it, and sent activations between stages asynchronously.
- Gradients are all-reduced over the data ranks where Meta's software reduces and scatters them: twice the
  bytes ([memory.md](memory.md)).
- Context parallelism is no axis of the program. Schedules are 1F1B and its interleaved form; Meta changed
  the number of microbatches of a stage that follow one another.

## Megatron-Turing NLG 530B: what a training budget buys

vTrain's first case study is the notebook `docs/notebooks/training-budget.ipynb`: plans on 1,920 to 3,360
A100. Three of them were measured (arXiv 2201.11990): 60.1, 50.2 and 44.4 s, estimated 48.9, 40.4 and
34.7 s: in their order, 19 to 22 % too fast. Recommended are 21 stages where 35 were run.
"""


def page(rows: Path, points: Path) -> str:
    """The whole page."""
    results = explore_405b.read_results(points)
    sizes = [explore_405b.section(results, devices) for devices in explore_405b.DEVICES]
    return "\n".join([HEAD, explore_ranking.section(read_rows(rows)), BETWEEN, *sizes, END])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write docs/explore-accuracy.md.")
    parser.add_argument("rows", type=Path, help="what benchmarks.explore_rows wrote")
    parser.add_argument("points", type=Path, help="what benchmarks.explore_405b wrote")
    given = parser.parse_args()
    PAGE.write_text(page(given.rows, given.points), encoding="utf-8")


if __name__ == "__main__":
    main()
