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
from benchmarks.accuracy_constants import as_markdown as constants_table
from benchmarks.accuracy_constants import doubtful
from benchmarks.accuracy_kernels import kernel_accuracy
from benchmarks.accuracy_parts import table as parts_table
from benchmarks.accuracy_row import Accuracy, as_markdown
from benchmarks.accuracy_steps import Result, commands, coverage, priced, step_accuracy
from benchmarks.accuracy_summary import with_summary
from benchmarks.accuracy_tpu import scalesim_accuracy, tpu_rows_accuracy
from benchmarks.fits.fit import all_fits
from benchmarks.step_rows import Case, all_cases
from benchmarks.trace_sums import all_sums, table

ROOT = Path(__file__).resolve().parents[1]
PAGE, SUMMARY = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "numbers.md"
#: Sections of the page: title, what is to be known before reading the table.
SECTIONS = {
    "GPU kernels": """GEMM and attention timings are NVIDIA's (aiconfigurator): replayed CUDA graphs
with a warm L2 and no power limit: bursts, which `[chip.gpu.constants]` price. What SimuMax measured in
training is sustained, priced with the library `sustained`, as stacks of training are. Element-wise,
softmax and layer norm kernels are NeuSight's, fp32, timed call by call: its times hold what a call takes beside its kernel (11 to 30 microseconds, 40 to 60 of a layer norm). Rows without a word have
the constants that all GPUs share and price kernels alone; those with "own constants and call" have each GPU's
own and add its call.
Constants are fitted by `python -m benchmarks.fits` on one half of the shapes, chosen by a hash of the
shape; "held out" is the other half. The same H100 grid measured with three versions of software
differs by 4.6-5.9 %: no model can honestly claim less. No estimate is below the time of the bytes
from memory, which measurements with a warm L2 are (L40S has 96 MB of it). Batched products, convolutions, backward
attention of most chips, sorts and optimizers have no measurements here; they rest on stated assumptions.""",
    "Collectives": """nccl-tests inside one node (aiconfigurator), and between nodes what public pages
have (benchmarks/data/nccl_public). `benchmarks.fits.networks` fits one half of the rows of a table, and
single facts, of which nothing is held out. "Roofline" is bytes on the wire by the bandwidth of the datasheet.""",
    "Systolic arrays": """TPU v6e layers of Llama-3.1-8B (LLMServingSim), constants fitted by
`benchmarks/fit_tpu.py` on one half of the shapes; SCALE-Sim's cycles, where nothing is fitted. Other TPUs
have the same efficiencies, marked assumed.""",
    "Training steps": """Each row is a model written in `benchmarks/models`, captured with that row's
parallelism, recomputation and microbatches, and estimated on a preset with a stack: what the command
below the table prints is the number that is judged. "Held out" are rows that no constant of preset or
stack was fitted on; where some were, `benchmarks.fits.steps` did it, on the "fitted" half. Rows are a
sample by hash where there are more than are counted. "Constant MFU" is the best constant share of the
peak, chosen on the very rows that it is judged on: what an estimate has to beat.""",
}

#: What is to be known before reading the sums over profiles.
PROFILES = """Whole models that PyTorch ran eagerly (`benchmarks/data/kineto`): sums of the kernels of each
class as measured and as priced from their shapes, with the preset of the machine and the stack that is
inferred from the program (`python -m benchmarks.trace_sums`). Constants of PyTorch's kernels bound by bytes
(`[chip.gpu.libraries.aten]`) are fitted on half of the kernels of these profiles, by hash; "held out" is the
error on the others, empty where all of a class were fitted on. "Covered" is the share of the time of all
kernels."""


#: What is to be known before reading errors of parts.
PARTS = """Errors of parts that cancel in a whole step show here: of each machine and source that gives parts
apart, how far the priced sum of all rows that nothing was fitted on is from the measured sum, in percent; a
plain roofline's in brackets. Sums are those of the long kernels, as in steps. Of training steps the sources
(vTrain, Megatron, LLM Foundry, torchtitan, TPU recipes) publish whole steps alone. Communication in profiles of
one rank holds the waiting for others, and is left out (`python -m benchmarks.accuracy_parts`)."""
#: What is to be known before reading how sure estimates are, and constants that one should know about.
SURE = """How many of these steps lie inside of the 80 % intervals that their estimates print
(`flint/cluster/residuals.toml`, made by `python -m benchmarks.residuals`; docs/decisions/0051). The
deviation of a step as a whole is chosen on one half of the rows of each data set, so that the mean of
the last two lines is 80 % there; "held out" is the other half."""
CONSTANTS = """Constants of presets that `python -m benchmarks.fits` left at the edge of what they may be,
or that rest on fewer than four rows. The command makes all fitted constants again and says which differ
from the files; CI runs it with `--quick`."""


def measured(steps: Sequence[Result]) -> dict[str, list[Accuracy]]:
    """All rows, by section."""
    return {
        "GPU kernels": kernel_accuracy(),
        "Collectives": collective_accuracy(),
        "Systolic arrays": [*tpu_rows_accuracy(), *scalesim_accuracy()],
        "Training steps": step_accuracy(steps),
    }


def page(tables: Mapping[str, Sequence[Accuracy]], steps: Sequence[Result]) -> str:
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
        if title == "GPU kernels":
            parts.append(f"### Sums over real profiles\n\n{PROFILES}\n\n{table(list(all_sums()))}")
        if title == "Training steps":
            parts.append(_typed())
            parts.append(f"### Parts\n\n{PARTS}\n\n{parts_table()}")
            parts.append(f"### How sure they are\n\n{SURE}\n\n{coverage(steps)}")
    parts.append(f"## Constants\n\n{CONSTANTS}\n\n{constants_table(doubtful(all_fits()))}")
    return "\n\n".join(parts) + "\n"


def _typed() -> str:
    """What a user types for a row of each set of training steps."""
    lines = [f"# {label}\n{command}" for label, command in commands(all_cases())]
    shell = "\n".join(lines).replace(" && ", "\n")
    return (
        "What a user types, for one row of each data set (its name, size, sequence, parallelism, and "
        f"microbatches x sequences in each):\n\n```sh\n{shell}\n```"
    )


def _steps(most: int) -> list[Result]:
    """Rows of whole steps, the first `most` of each data set in the order of a hash."""
    chosen: list[Case] = []
    for data in dict.fromkeys(case.data for case in all_cases()):
        cases = [case for case in all_cases() if case.data == data]
        chosen += sorted(cases, key=lambda case: case.order)[:most]
    return [priced(case) for case in chosen]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write docs/accuracy.md.")
    parser.add_argument("--most", type=int, default=60, help="training steps of each data set")
    steps = _steps(parser.parse_args().most)
    tables = measured(steps)
    PAGE.write_text(page(tables, steps), encoding="utf-8")
    rows = [row for section in tables.values() for row in section]
    SUMMARY.write_text(with_summary(SUMMARY.read_text("utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
