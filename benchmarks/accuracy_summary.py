"""The summary of the accuracy report that docs/numbers.md shows: rows that nothing was fitted on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchmarks.accuracy_row import HEADINGS as COLUMNS
from benchmarks.accuracy_row import Accuracy

#: What docs/numbers.md shows: a name, and the data and split of the rows of the report that it is about.
SHOWN = (
    ("GEMM, bf16", "GEMM bf16", "held out"),
    ("NCCL, 2-8 GPUs", "NCCL 2-8 GPUs", "held out"),
    ("element-wise kernels", "element-wise f32", "held out"),
    ("softmax", "softmax f32", "held out"),
    ("layer norm", "layer norm f32", "held out"),
    ("products of Llama's layers", "llmservingsim layer products, all weights read", "held out"),
    ("training steps: GPT, 1 node (vTrain)", "vTrain single node", "held out"),
    ("training steps: GPT, 512 GPUs (vTrain)", "vTrain 512 GPUs", "held out"),
    ("training steps: GPT 22B and 175B (Megatron)", "Megatron", "held out"),
    ("training steps: MPT (LLM Foundry)", "LLM Foundry H100", "held out"),
    ("training steps: MPT (LLM Foundry)", "LLM Foundry A100", "held out"),
    ("training steps: Llama 8B, compiled (torchtitan)", "torchtitan", "held out"),
    ("training steps: Llama 8B, eager (torchtitan)", "torchtitan eager", "held out"),
    ("training steps: Llama 8B, float8, 32k to 262k tokens", "torchtitan float8, long", "held out"),
    ("training steps: MaxText (TPU recipes)", "TPU recipes", "held out"),
)
HEADINGS = ("what", "system", "rows", "MAPE", "median", "bias", "plain roofline", "constant MFU")


def reported(page: str) -> list[Accuracy]:
    """The rows of errors in the text of docs/accuracy.md."""
    rows, is_theirs = [], False
    for line in page.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0] in ("data", "profile", "constant"):  # headings: other things have tables, too
            is_theirs = "MAPE" in cells
        if not is_theirs or len(cells) < len(COLUMNS) - 1 or not re.fullmatch(r"[\d,]+", cells[3]):
            continue
        numbers = [float(c) for c in cells[4:] if c]
        count = int(cells[3].replace(",", ""))
        rows.append(Accuracy(cells[0], cells[1], cells[2], count, *numbers))
    return rows


def summary(rows: Sequence[Accuracy]) -> str:
    """The rows of SHOWN as a table; where a data set has a row of all its chips, only that."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|" + "--:|" * (len(HEADINGS) - 2)]
    for name, data, split in SHOWN:
        found = [r for r in rows if (r.data, r.split) == (data, split)]
        found = [r for r in found if r.chip == "all five"] or found
        lines += ["| " + " | ".join(_cells(name, r)) + " |" for r in found]
    return "\n".join(lines)


def _cells(name: str, row: Accuracy) -> Iterable[str]:
    constant = "" if row.constant is None else f"{row.constant:.0f}"
    errors = (f"{row.mape:.1f}", f"{row.median:.1f}", f"{row.bias:+.1f}", f"{row.roofline:.0f}")
    return (name, row.chip, f"{row.count:,}", *errors, constant)


def between(text: str, name: str, table: str) -> str:
    """A page with what stands between the two marks of a name replaced. ValueError: it has no marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks '{begin}' and '{end}'")
    return f"{before}{begin}\n{table}\n{end}{after}"
