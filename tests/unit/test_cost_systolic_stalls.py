"""SCALE-Sim's double buffers, on cases small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flint.backends.cost.chips.systolic.scalesim import DATAFLOWS, cycles
from flint.backends.cost.chips.systolic.scalesim_reads import dram_words
from flint.backends.cost.chips.systolic.scalesim_stalls import limited_cycles
from flint.backends.cost.chips.systolic.scalesim_writes import WriteBuffer, results_per_cycle


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_operands_that_fit_never_wait(dataflow: str) -> None:
    found = limited_cycles(64, 64, 64, 32, 32, dataflow, 10, 16, 16, 16)
    assert found == int(cycles(64, 64, 64, 32, 32, dataflow))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_enough_bandwidth_never_waits(dataflow: str) -> None:
    slow, fast = (
        limited_cycles(256, 256, 256, 32, 32, dataflow, b, 16, 16, 16) for b in (1, 10**6)
    )
    base = int(cycles(256, 256, 256, 32, 32, dataflow))
    assert base <= fast < 1.2 * base < slow


def test_a_streamed_operand_is_read_once_per_column_of_tiles() -> None:
    # one tile of 8 rows; 8 columns of tiles; 16 halves of 512 words in the streamed operand
    m, n, k = 1024, 64, 8
    words = dram_words(*(np.array([x]) for x in (m, n, k)), 8, 8, "ws", 512.0)[0]
    assert words == m * k * 8 + k * n
    found = limited_cycles(m, n, k, 8, 8, "ws", 1, 1, 1, 1024)
    assert found == pytest.approx(m * k * 8, rel=0.05)


def test_one_more_tile_costs_a_fold() -> None:
    one, two = (limited_cycles(8, n, 8, 8, 8, "os", 100, 16, 16, 16) for n in (8, 9))
    assert two - one == 8 + 8 + 8 - 2


def test_an_unknown_dataflow() -> None:
    with pytest.raises(ValueError, match="none of os, ws, is"):
        limited_cycles(8, 8, 8, 8, 8, "rs", 10, 16, 16, 16)


def test_results_wait_when_there_is_no_room_left() -> None:
    buffer = WriteBuffer(words=16, words_per_cycle=2)
    assert buffer.stall(0, 9) == 0  # more than half: 4 lines leave until cycle 3
    assert buffer.free == 15
    assert buffer.stall(1, 14) == 0
    assert buffer.stall(2, 1) == 1  # no room before cycle 3
    assert buffer.stall(100, 0) == 0


def test_results_leave_an_array_skewed() -> None:
    assert results_per_cycle(3, 2).tolist() == [1, 2, 2, 1]
    assert results_per_cycle(5, 7).sum() == 35
