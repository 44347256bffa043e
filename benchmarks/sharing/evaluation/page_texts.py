"""What the page says between its tables."""

from __future__ import annotations

HEAD = """\
# How good generated workloads are

Generated workloads against real ones of families that the generator has not seen, beside what is easily
made. Written by `python -m benchmarks.sharing.evaluation CORPUS -o docs/synth-accuracy.md`; the corpus is
captured by `benchmarks/sharing/corpus`. Why it is measured so: [0064](decisions/0064-evaluation.md).
"""

CONDITIONS = """\
A method sees the training families alone. Then it is given the totals of one held-out workload after
another (mesh, FLOPs, bytes by axis, layers, shares of phases, peak memory, rows: nothing of its graph) and
makes one workload for each, of at most {samples} in a fold; seed {seed}. All methods get the same totals:

- **copy**: a training workload at random; **copy nearest**: the one with the nearest totals;
- **mutate**: one of the three nearest; of its rows element by element 5 % go and 5 % become another
  class, and 5 % of its edges read another row of the same type; copies keep the mesh of their capture;
- **motifs**: loops, and runs of rows between loops, of training workloads one after another; what they read
  from outside is a row of the same type or a new parameter;
- **trigram**: rows follow the two before them as in training, and read as far back as such rows do.

Distances, novelty and leakage are those of the program with most FLOPs, loops not unrolled. All that
verifies is compared, whether it is valid or not. Means are over folds; in a fold each family counts alike.
"""

VALIDITY = """\
Valid is what verifies and keeps all strict rules of captured programs (`flint.tools.share.rules`). The generator draws again where a program breaks a rule, so that what it makes is valid by
construction or is not made; what is asked for and not made counts as not valid. LayerDAG's 56 % (latent
preferential DAGs, rho 0; the next best 37 %) is of one rule and of single draws.
"""

DISTANCES = """\
Distances between the held-out workloads and what was made for them. Of an attribute that is a number of each
workload, or a distribution over numbers, it is Wasserstein-1, in octaves (1 is a factor of 2); of names total variation (0 to 1).
The discrepancy has a Gaussian kernel on the numbers, or on histograms that sum to 1, cumulated where bins
have an order; its bandwidth is the median distance between two different held-out workloads. *Halves* are random halves
of the held-out workloads of each family from one another, mean of ten: the least that can be asked for, of
half as many workloads (which makes discrepancies larger). *Real training* is how far other families are. Lowest in bold.
Rows and layers are given, or nearly: what makes exactly as many rows as it is told is at 0 there.
"""

PAIRS = """\
Each made workload from the one held-out workload whose totals it was made for: no baseline profits from
errors that cancel over the set.
"""

NOVELTY = """\
By Weisfeiler-Leman hash of depth 3, against the training families. *New programs*: op classes and edges in
no training workload; *topologies*: edges alone. *Unique*: no other of the set has it. *New loop
bodies*: of loops with 12 rows or more. *New rows*: rows whose neighbourhood of depth 3 no training workload has.
"""

SURROGATES_TEXT = """\
The label is the logarithm of the step time that `flint estimate` gives on `h100-dgx` (operations without a
price count nothing; steps of more than 500,000 operations on a device have no label). Surrogates see neither that estimator nor the generator: they read totals (executions,
FLOPs and bytes by group of op classes, collectives by kind, rows, layers, phases), trained on made
workloads and tested on all real held-out ones that have a label ({tested}). Here workloads are made for totals of *training*
workloads, so that nothing of the test is known. *Real, as many* are those same training workloads.
*Copy nearest* finds these themselves, and is no achievement. The mean and a line in log FLOPs need no graph.
"""

LEAKAGE = """\
Bits of the structure (op classes, kinds, edges) that a program shares with a training program: C(x) + C(y) -
C(xy), C the bits that LZMA makes of it; of the three training programs with the nearest neighbourhoods the one
that shares most. Medians, and the share of the program's own bits. *Real, held out* is the floor: what
families share anyway; *copy* is the ceiling. *Membership*: how well the distance to the nearest made
workload tells training workloads from held-out ones (area under the curve, mean of the folds; 0.5 is chance, and made
workloads are asked for with totals of the held-out ones).
"""
