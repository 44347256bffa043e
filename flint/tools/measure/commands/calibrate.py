"""`flint calibrate`: constants of a cluster from measurements; a script that takes what is missing."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.errors import FlintError
from flint.io.outputs import OutputKind

if TYPE_CHECKING:
    from flint.tools.measure.calibration.result import Calibration


class Framework(StrEnum):
    """Which framework the script of --collect measures with."""

    TORCH = "torch"
    JAX = "jax"


Data = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DATA...]",
        help="Measurements: logs of nccl-tests, rccl-tests and OSU, CSVs, tables of "
        "aiconfigurator, torch.utils.benchmark, profiles, and .flint files made from "
        "profiles.",
    ),
    READS,
]
Base = Annotated[
    str,
    typer.Option("--base", metavar="NAME|FILE", help="The cluster to start from: {clusters}."),
    READS,
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write a cluster file."),
    Writes(OutputKind.CLUSTER),
]
Residuals = Annotated[
    bool,
    typer.Option("--residuals", help="Also write the times of exact shapes, as FILE.kernels.csv."),
]
StackName = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME|FILE",
        help="Stack whose kernels were measured: {stacks} (default: pytorch-eager for profiles, else none).",
    ),
    READS,
]
Check = Annotated[
    bool, typer.Option("--check", help="Fit nothing; print the base's errors on all rows.")
]
Collect = Annotated[
    Path | None,
    typer.Option("--collect", metavar="FILE.py", help="Only write a script that measures one GPU."),
    Writes(OutputKind.SCRIPT),
]
FrameworkName = Annotated[
    Framework,
    typer.Option("--framework", help="Framework that the script of --collect measures with."),
]


def calibrate(
    data: Data = None,
    base: Base = "",
    output: Output = None,
    stack: StackName = None,
    residuals: Residuals = False,
    check: Check = False,
    collect: Collect = None,
    framework: FrameworkName = Framework.TORCH,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Fit a cluster's constants to measurements.

    Half of the rows is fitted; errors before and after are those of the other half. A constant that
    the rows do not determine, or that the fit does not improve, keeps the base's value.
    """
    if collect is not None:
        _collect(collect, framework, data, quiet=quiet, force=force)
        return
    _refuse_together(base, output, residuals=residuals, check=check)
    from flint.tools.measure.calibration.calibrate import calibrate as fit

    with stages_shown(quiet=quiet or json_):
        found = fit(*(data or ()), base=base, stack=stack, check=check)
    files = []
    if output is not None:
        files = [str(f) for f in found.write(output, residuals=residuals, force=force)]
    _print(found, files, as_json=json_, quiet=quiet, verbose=verbose > 0, checked=check)


def _refuse_together(base: str, output: Path | None, *, residuals: bool, check: bool) -> None:
    if not base:
        raise FlintError(
            "FL218",
            "calibrate needs --base",
            help="give a preset or a cluster file: --base h100-dgx",
        )
    if residuals and output is None:
        raise FlintError("FL218", "--residuals writes a file beside FILE", help="also give -o FILE")
    if check and output is not None:
        raise FlintError(
            "FL218", "--check fits nothing that -o could write", help="omit one of them"
        )


def _print(
    found: Calibration,
    files: list[str],
    *,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    checked: bool,
) -> None:
    from flint.tools.measure.calibration.result import as_text

    if as_json:
        print_json(found.to_json(files))
        return
    print_text(as_text(found, verbose=verbose, checked=checked))
    for file in files:
        print_note(f"wrote {file}", quiet=quiet)


def _collect(
    path: Path, framework: Framework, data: list[Path] | None, *, quiet: bool, force: bool
) -> None:
    from flint.tools.measure.calibration.collect import write_script

    if data:
        raise FlintError("FL218", "--collect reads no measurements", help="omit DATA")
    write_script(path, framework.value, force=force)
    print_note(f"wrote {path}: run it on the machine, python {path} -o mine.csv", quiet=quiet)
