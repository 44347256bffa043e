"""Write docs/accuracy.md, and its summary in docs/numbers.md: how far estimates are from measurements.

    python -m benchmarks.accuracy               at most 60 rows of each set of training steps
    python -m benchmarks.accuracy --most 16     fewer of them, in a few minutes

The page is made of the tables of accuracy_kernels, accuracy_collectives, accuracy_tpu and
accuracy_steps, which can be run one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy_collectives import table as collective_accuracy
from benchmarks.accuracy_kernels import kernel_accuracy
from benchmarks.accuracy_row import Accuracy, as_markdown
from benchmarks.accuracy_steps import priced, step_accuracy
from benchmarks.accuracy_summary import with_summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy
from benchmarks.step_rows import Case, all_cases

ROOT = Path(__file__).resolve().parents[1]
PAGE, SUMMARY = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "numbers.md"
#: Sections of the page: title, what is to be known before reading the table.
SECTIONS = {
    "GPU kernels": """GEMM and attention timings are NVIDIA's (aiconfigurator): replayed CUDA graphs
with a warm L2 and no power limit, so real steps are slower. B200 ran on uninitialised weights, about
8-19 % too fast for large products. Element-wise, softmax and layer norm kernels are NeuSight's, fp32.
Constants are fitted by `benchmarks/fit_gpu.py` on one half of the shapes, chosen by a hash of the
shape; "held out" is the other half. The same H100 grid measured with three versions of software
differs by 4.6-5.9 %: no model can honestly claim less. No estimate is below the time of the bytes
from memory, which measurements with a warm L2 are (L40S has 96 MB of it). Batched products, convolutions, backward
attention, gathers, sorts and optimizers have no measurements here; they rest on stated assumptions.""",
    "Collectives": """nccl-tests inside one node (aiconfigurator), and all-reduce on two nodes of AWS.
Four constants for each generation of GPU, fitted by `benchmarks/fit_nccl.py` on one half of the
rows. "Roofline" is bytes on the wire by the bandwidth of the datasheet.""",
    "Systolic arrays": """TPU v6e layers of Llama-3.1-8B (LLMServingSim), constants fitted by
`benchmarks/fit_tpu.py` on one half of the shapes; SCALE-Sim's cycles, where nothing is fitted. Other TPUs
have the same efficiencies, marked assumed.""",
    "Training steps": """Each row is a model written in `benchmarks/models`, captured with that row's
parallelism, recomputation and microbatches, and estimated on the system that it was measured on
(`benchmarks/systems`). The only numbers that come from these measurements are the time that vTrain's
host takes to launch a kernel (57 us, from the "fitted" half of its single-node rows; rows of both
halves were looked at when it was first chosen, so its "held out" is not perfectly clean) and
torchtitan's derate (0.81, from its 128-GPU row). Rows are a sample by hash where there are more than
are counted. "Constant MFU" is the best constant share of the peak, chosen on the very rows that it is
judged on: what an estimate has to beat.""",
}


def measured(most: int) -> dict[str, list[Accuracy]]:
    """All rows, by section."""
    return {
        "GPU kernels": kernel_accuracy(),
        "Collectives": collective_accuracy(),
        "Systolic arrays": [*tpu_rows_accuracy(), *scalesim_accuracy()],
        "Training steps": _steps(most),
    }


def page(tables: Mapping[str, Sequence[Accuracy]]) -> str:
    """The text of docs/accuracy.md."""
    parts = [
        (
            "# Accuracy\n\nErrors in percent against measurements: mean absolute (MAPE), median and "
            "90th percentile of absolute errors, and bias (mean of signed errors, below 0 is too fast), "
            "beside a plain roofline on the same rows. Written by `python -m benchmarks.accuracy`; the "
            "data with its licences is in `benchmarks/data`."
        )
    ]
    for title, text in SECTIONS.items():
        parts.append(f"## {title}\n\n{text}\n\n{as_markdown(tables[title])}")
    return "\n\n".join(parts) + "\n"


def _steps(most: int) -> list[Accuracy]:
    """Rows of whole steps, the first `most` of each data set in the order of a hash."""
    chosen: list[Case] = []
    for data in dict.fromkeys(case.data for case in all_cases()):
        cases = [case for case in all_cases() if case.data == data]
        chosen += sorted(cases, key=lambda case: case.order)[:most]
    return step_accuracy([priced(case) for case in chosen])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write docs/accuracy.md.")
    parser.add_argument("--most", type=int, default=60, help="training steps of each data set")
    tables = measured(parser.parse_args().most)
    PAGE.write_text(page(tables), encoding="utf-8")
    rows = [row for section in tables.values() for row in section]
    SUMMARY.write_text(with_summary(SUMMARY.read_text("utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
