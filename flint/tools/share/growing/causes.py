"""Causes of collectives without the sizes that they were made for."""

from __future__ import annotations

import re

import numpy as np

from flint.ir.columns import compact_tables
from flint.ir.program import Program

#: Sizes in the text of a Shardy rule: ` {i=4, j=768}`.
_SIZES = re.compile(r" ?\{\w+=\d+(?:, \w+=\d+)*\}")


def without_sizes(program: Program) -> Program:
    """The program whose causes name dimensions, and not how long they were."""
    used = np.unique(program.cause).tolist()
    told = {number: _SIZES.sub("", program.strings[number]) for number in used}
    strings = (*program.strings, *dict.fromkeys(told.values()))
    first = {text: i for i, text in reversed(list(enumerate(strings)))}
    new = np.arange(len(program.strings), dtype=np.int32)
    for number, text in told.items():
        new[number] = first[text]
    return compact_tables(program.with_rows(cause=new[program.cause], strings=strings))
