"""Peak memory against XLA's own analysis (`memory_analysis()`) of the examples, at small sizes.

XLA compiles for eight CPU devices. Three comparisons, all within 5 % but for `MISSES`:

- The program that XLA ended with, kernel by kernel in its order, read back from its HLO: what is
  alive when, and what shares memory. Most are within 1 %.
- The program as captured, in Flint's kernels, in the order in which XLA for CPUs runs them.
- The same in the order in which it was written, which is what estimates say: accelerators do not
  start early what can wait. XLA for CPUs does, so that some differ from it.

`python -m benchmarks.memory` has more sizes, and XLA for TPUs. Compilers run in processes of their
own, because devices are chosen before jax starts.
"""

from __future__ import annotations

import functools

import pytest

from benchmarks.memory import BAR, in_process

#: The larger cases of `benchmarks.memory` are not run here.
CASES = (
    "llama-scan-full",
    "llama-scan-none",
    "llama-scan-none-sp",
    "llama-scan-full-dp",
    "llama-unrolled-full",
    "llama-unrolled-none",
    "mixtral",
    "decode",
    "ring-attention",
    "resnet50-image-64",
)
#: In XLA's order: at least and at most, and why.
MISSES = {
    # Products of matrices in XLA for CPUs want rows and columns in a fixed order: it stores the
    # gradient of the scores twice, as it is and transposed, beside what it is computed from, where
    # our kernels write it over that. (XLA for TPUs says less than we do, docs/memory.md.)
    "ring-attention": (-0.40, -0.25),
    # Not traced to single arrays; at 64 images of 128 pixels the difference is 2 %.
    "resnet50-image-64": (-0.20, -0.05),
}
#: In the order of the program: also these.
MISSES_AS_WRITTEN = {
    # A recomputed layer waits for its gradient. XLA for CPUs drops the barriers that say so and
    # recomputes all layers at once: it keeps what no remat at all would.
    "llama-unrolled-full": (-0.75, -0.50),
    # XLA for CPUs begins gradients of weights, and gathers, when it can, not when it must.
    "llama-unrolled-none": (-0.15, 0.0),
    "llama-scan-full": (-0.10, 0.0),
    "ring-attention": (-0.50, -0.30),
}


@functools.cache
def compiled(case: str) -> dict[str, int]:
    return in_process("cpu", case)


@functools.cache
def captured(case: str) -> dict[str, int]:
    return in_process("captured", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_of_what_xla_runs_is_what_xla_says(case: str) -> None:
    found = compiled(case)
    assert found["optimised"] == pytest.approx(found["xla"], rel=BAR)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_of_what_was_captured_in_the_order_of_xla(case: str) -> None:
    low, high = MISSES.get(case, (-BAR, BAR))
    assert low <= captured(case)["queued"] / compiled(case)["xla"] - 1 <= high


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_of_what_was_captured_as_written(case: str) -> None:
    low, high = MISSES_AS_WRITTEN.get(case, (-BAR, BAR))
    assert low <= captured(case)["written"] / compiled(case)["xla"] - 1 <= high
