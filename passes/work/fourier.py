"""The work of Fourier transforms, whichever form they were read from."""

from __future__ import annotations

import math

from flint.passes.work.work import Work


def fft_work(elements: int, outer: int, last: int) -> Work:
    """5 n log2 n operations for each transform of n elements (Cooley and Tukey's upper bound).

    `outer` are the elements of its other axes, all together, `last` those of the last one. dims
    are (outer, transforms, 1, last).
    """
    length = max(outer * last, 1)
    flops = int(5 * elements * math.log2(max(length, 2)))
    return Work(flops=flops, dims=(outer, elements // length, 1, last))
