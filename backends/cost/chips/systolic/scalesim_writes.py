"""SCALE-Sim's buffer of results: when the array waits because it is full.

Results are gathered in lines of one cycle's bandwidth. As soon as more than half of the SRAM is
taken, lines are sent to DRAM, half of the SRAM's words at most: their room is free at once, but
nothing else is sent before they have left, and the array waits if no room is left by then.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray


class WriteBuffer:
    """Words in the buffer, the lines that they are in, and when the last lines have left."""

    def __init__(self, words: int, words_per_cycle: int) -> None:
        self.free = words
        self.active = math.ceil(words / 2)
        self.line = words_per_cycle
        self.most_lines = math.ceil((words - self.active) / words_per_cycle)
        self.lines: deque[int] = deque()  # words in each line that is waiting
        self.begun = 0  # words in the line that is not full yet
        self.sent = 0  # cycle in which the last lines have left

    def stall(self, cycle: int, words: int) -> int:
        """Cycles that the array waits if it writes `words` results in `cycle`."""
        now = cycle
        while words:
            waiting = now < self.sent
            room = self.free if waiting else self.free - self.active + 1
            taken = min(words, max(room, 1))
            self._take(taken)
            words -= taken
            if waiting and self.free <= 0:
                now = self.sent
            elif not waiting and self.free < self.active:
                self._send(now)
        return now - cycle

    def _take(self, words: int) -> None:
        self.free -= words
        self.begun += words
        while self.begun >= self.line:
            self.lines.append(self.line)
            self.begun -= self.line

    def _send(self, now: int) -> None:
        if self.begun:
            self.lines.append(self.begun)
            self.begun = 0
        count = min(self.most_lines, len(self.lines))
        gone = [self.lines.popleft() for _ in range(count)]
        # of the lines that are not full, SCALE-Sim only sees the last one as such
        self.free += (count - 1) * self.line + gone[-1]
        self.sent = now + count - 1


def results_per_cycle(high: int, wide: int) -> NDArray[np.int64]:
    """Results of `wide` lanes of `high` rows that leave the array skewed, cycle by cycle."""
    return np.convolve(np.ones(high, np.int64), np.ones(wide, np.int64))
