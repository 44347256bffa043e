"""Measured calls of fused experts (serving engines) and of grouped products (training), with their loads.

aiconfigurator's rows are one rank's call: choosing experts, sorting rows by expert, both products,
the activation between them and the sum over each token's experts. How many rows each expert had is
not in the data; it is drawn here as its collector draws it: balanced in turn, or so many by a power
law, rounded, no expert more than all tokens, what is left over given out rank by rank, the most
loaded rank first. The mean over draws counts.

Two things follow from how the collector calls the kernels. Triton's plain path (`PLAIN` models) has
no experts of other ranks: rows for those go to the rank's first expert. All other paths are given
all tokens of the group: what is not a product (the sum over experts) takes all of them.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_rows import DATA, Row, half_of, read
from benchmarks.simumax_rows import SYSTEMS
from flint.backends.cost.chips.families.gpu.grouped import Loads, Matrices
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import halves, hash_of

#: Draws of each row.
DRAWS = 5
#: Hidden and inner size, experts of a token and experts of models without routing options.
PLAIN = frozenset(
    {
        (4096, 14336, 2, 8), (6144, 16384, 2, 8), (5120, 8192, 1, 16), (5120, 8192, 1, 128),
        (2816, 704, 8, 128),
    }
)  # fmt: skip
#: The end of `kernel_source` -> the library.
LIBRARIES = {
    "fused_moe_triton": "moe-triton",
    "cutlass_moe": "moe-cutlass",
    "trtllm_moe": "moe-trtllm",
}
#: Bytes of a number of each file's weights and rows.
SIZES = {"bf16": 2, "fp8_block": 1}
_INTEGERS = (
    *(
        "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
        "moe_ep_size",
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExpertCalls:
    """Calls of one library on one GPU, in columns: sizes of this rank, and loads of its experts.

    `inner` and `gated` make the first product (rows x hidden) by (hidden x gated * inner); `others`
    are rows that what is no product handles, `tokens` those that the choice of experts does. `low` are
    calls for which Triton's path takes its low tile: of no more tokens than the rank has experts.
    """

    loads: Loads
    hidden: Float64s
    inner: Float64s
    gated: Float64s
    experts: Float64s
    tokens: Float64s
    others: Float64s
    size: int
    low: NDArray[np.bool_]
    balanced: NDArray[np.bool_]
    measured_ns: Float64s
    half: NDArray[np.int64]

    def select(self, rows: NDArray[np.bool_]) -> ExpertCalls:
        """Some of the calls."""
        columns = {n: v[rows] for n, v in vars(self).items() if isinstance(v, np.ndarray)}
        loads = Loads(
            self.loads.rows[rows], self.loads.touched[rows], self.loads.most[rows],
            self.loads.tiles[:, rows],
        )  # fmt: skip
        return ExpertCalls(loads=loads, size=self.size, **columns)

    def products(self) -> tuple[Matrices, Matrices]:
        """Into the experts and out of them."""
        return (
            self._matrices(self.gated * self.inner, self.hidden),
            self._matrices(self.hidden, self.inner),
        )

    def _matrices(self, n: Float64s, k: Float64s) -> Matrices:
        weights = self.loads.touched * n * k * self.size
        return Matrices(n, k, weights + self.loads.rows * (k * self.size + 2 * n))


def fitted_rows(gpu: str, dtype: str, library: str) -> int:
    """How many calls of a library are in the half that is fitted on."""
    rows = read(f"aiconfigurator/moe_{dtype}_{gpu}_*")
    own = [row for row in rows if _library(row) == library]
    return sum(half_of(*(int(row[name]) for name in _INTEGERS)) == 0 for row in own)


@cache
def expert_calls(gpu: str, dtype: str, library: str) -> ExpertCalls:
    """Calls of fused experts: `dtype` is "bf16" or "fp8_block"."""
    rows = [
        _numbers(row)
        for row in read(f"aiconfigurator/moe_{dtype}_{gpu}_*")
        if _library(row) == library
    ]
    found = [_drawn(row, library) for row in rows]
    whole = np.array([[row[name] for name in _INTEGERS] for row in rows], np.float64).T
    tokens, hidden, inner, topk, experts, split, ranks = whole
    plain = np.array([library == "moe-triton" and _is_plain(row) for row in rows])
    local = np.array([many for _, many in found])
    loads = Loads.together([loads for loads, _ in found])
    return ExpertCalls(
        loads=loads,
        hidden=hidden,
        inner=inner / split,
        gated=np.where((hidden == 2688) | (topk == 22), 1.0, 2.0),  # Nemotron's are not
        experts=experts,
        tokens=np.where(plain, local, tokens),
        others=np.where(plain, loads.rows, tokens * topk),
        size=SIZES[dtype],
        low=np.where(plain, local, tokens) <= experts / ranks,
        balanced=np.array([row["distribution"] == 0 for row in rows]),
        measured_ns=np.array([row["latency_ms"] for row in rows]) * 1e6,
        half=np.array([half_of(*(int(row[n]) for n in _INTEGERS)) for row in rows]),
    )


def _numbers(row: Row) -> Mapping[str, float]:
    power = row["distribution"].removeprefix("power_law_")
    law = 0.0 if power == "balanced" else float(power)
    found = {name: float(int(row[name])) for name in _INTEGERS}
    return {**found, "distribution": law, "latency_ms": float(row["latency_ms"])}


def _is_plain(row: Mapping[str, float]) -> bool:
    names = ("hidden_size", "inter_size", "topk", "num_experts")
    return tuple(int(row[name]) for name in names) in PLAIN


def _drawn(row: Mapping[str, float], library: str) -> tuple[Loads, float]:
    """Loads of the most loaded rank, and how many tokens have an expert there."""
    tokens, topk = int(row["num_tokens"]), int(row["topk"])
    experts, ranks = int(row["num_experts"]), int(row["moe_ep_size"])
    local = experts // ranks
    if row["distribution"] == 0:
        chosen = _in_turn(tokens, experts, topk)
        draws = [np.bincount(chosen.ravel(), minlength=experts)[:local].astype(np.float64)]
        some = float((chosen < local).any(axis=1).sum())
    else:
        seed = zlib.crc32(repr(sorted(row.items())[1:]).encode())
        generator = np.random.default_rng(seed)
        everything = [
            _power_law(generator, tokens, experts, topk, ranks, row["distribution"])
            for _ in range(DRAWS)
        ]
        draws = [of_ranks[of_ranks.sum(axis=1).argmax()] for of_ranks in everything]
        some = float(np.mean([tokens * (1 - np.prod(1 - d / tokens)) for d in draws]))
    if library == "moe-triton" and ranks > 1 and _is_plain(row):
        for draw in draws:
            draw[0] += max(some * topk - draw.sum(), 0)
    return Loads.of(draws), some


def _in_turn(tokens: int, experts: int, topk: int) -> NDArray[np.int64]:
    """The experts of each token where all get as many."""
    stride = -(-experts // topk)
    first = np.arange(tokens)[:, None] * (1 if tokens >= stride else stride / tokens)
    chosen = (first + np.arange(topk)[None] * stride) % experts
    return chosen.astype(np.int64)


def _power_law(
    generator: np.random.Generator, tokens: int, experts: int, topk: int, ranks: int, power: float
) -> Float64s:
    """Rows of each expert, (ranks, experts of a rank)."""
    least, most = (1.0, tokens * 0.8) if tokens * topk > experts else (0.01, 2.0)
    ends = least ** (1 - power), most ** (1 - power)
    drawn = (ends[0] + (ends[1] - ends[0]) * generator.random(experts)) ** (1 / (1 - power))
    rows = np.round(drawn / drawn.sum() * tokens * topk)
    over = int(np.maximum(rows - tokens, 0).sum())
    rows = np.minimum(rows, tokens).reshape(ranks, -1)
    _give_out(rows, over, tokens)
    _give_out(rows, int(tokens * topk - rows.sum()), tokens)
    return rows


def _give_out(rows: Float64s, amount: int, most: int) -> None:
    """One row at a time, rank by rank, to the expert with least of each (taken: with most)."""
    step, at, stuck = (1 if amount > 0 else -1), 0, 0
    left = abs(amount)
    while left and stuck < len(rows):
        expert = int(rows[at].argmin() if step > 0 else rows[at].argmax())
        fits = rows[at, expert] < most if step > 0 else rows[at, expert] > 0
        if fits:
            rows[at, expert] += step
            left -= 1
        stuck = 0 if fits else stuck + 1
        at = (at + 1) % len(rows)


@dataclass(frozen=True, eq=False)
class GroupedProducts:
    """Grouped products as training launches them; `sums`: gradients of the matrices.

    Every group has `rows`; sizes are those of `gpu.grouped`.
    """

    groups: Float64s
    rows: Float64s
    n: Float64s
    k: Float64s
    sums: NDArray[np.bool_]
    moved_bytes: Float64s
    measured_ns: Float64s
    half: NDArray[np.int64]


def training_products(preset: str) -> GroupedProducts:
    """SimuMax's grouped products of one machine: balanced, gradients of matrices are added up."""
    with (DATA / "simumax" / "kernels.csv").open(encoding="utf-8") as file:
        rows = [
            r for r in csv.DictReader(file)
            if r["op"] == "group_matmul" and r["system"] == SYSTEMS[preset]
        ]  # fmt: skip
    parts = [dict(p.split("=") for p in r["shape"].split(", ")) for r in rows]
    groups, m, n, k = (np.array([float(p[name]) for p in parts]) for name in ("ng", "M", "N", "K"))
    sums = np.array([p["stage"] == "bwd_grad_w" for p in parts])
    inputs = np.array([p["stage"] == "bwd_grad_act" for p in parts])
    adds = np.array([p["accumulate"] == "True" for p in parts])
    rate = np.array([float(r["peak_tflops"]) * float(r["efficiency"]) for r in rows])
    wide = np.array([p["main_grad_dtype"] == "fp32" for p in parts])
    result = groups * n * k * np.where(adds, 2, 1) * np.where(wide, 4.0, 2.0)
    moved = np.where(sums, 2 * groups * m * (n + k) + result, 2 * groups * (m * (n + k) + n * k))
    hashes = [
        hash_of(*map(int, s))
        for s in zip(groups, m, n, k, sums + 2 * inputs + 4 * wide, strict=True)
    ]
    return GroupedProducts(
        groups, groups * m, np.where(inputs, k, n), np.where(inputs, n, k), sums, moved,
        2 * groups * m * n * k / rate * 1e-3, halves(hashes),
    )  # fmt: skip


def _library(row: Row) -> str:
    return next(name for end, name in LIBRARIES.items() if row["kernel_source"].endswith(end))
