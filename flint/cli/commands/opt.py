"""`flint opt`: apply passes to programs, and show them as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.io.outputs import OutputKind, write_output

if TYPE_CHECKING:
    from flint.cli.documents import AppliedDocument, OptDocument
    from flint.ir.program import Program
    from flint.ir.workload import Workload
    from flint.passes.base import Pass


def opt(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A trace directory, a .flint file, or a program as text."
        ),
        READS,
    ],
    passes: Annotated[
        str, typer.Option("--passes", "-p", metavar="PASS,...", help="Passes, in order: see below.")
    ] = "",
    print_before: Annotated[
        bool, typer.Option("--print-before", help="Print programs before each pass.")
    ] = False,
    print_after: Annotated[
        bool, typer.Option("--print-after", help="Print programs after each pass.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write: a .flint file, or text."
        ),
        Writes(OutputKind.PROGRAM, or_workload=True),
    ] = None,
    rank_class: Annotated[
        int | None,
        typer.Option("--rank-class", metavar="N", help="Only the program of this rank class."),
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Apply passes to programs, and show them as text.

    A program is verified after each pass. Without -o and --print-after the result is printed.
    """
    from flint.ir.text.printer import print_program
    from flint.passes.pass_list import parse_passes

    chosen = parse_passes(passes)
    workload = _load(path)
    numbers = _chosen(workload, rank_class)
    _can_write(output, numbers)
    run = _OptRun(chosen, print_before and not json_, print_after and not json_, quiet or json_)
    result = run.of(workload, numbers)
    if output is not None:
        _write(output, result, numbers[0], force=force)
    if json_:
        file = str(output) if output else None
        document: OptDocument = {"schema": "flint.opt/1", "passes": run.table, "file": file}
        print_json(document)
    elif output is None and not (print_after and chosen):
        for number in numbers:
            print_text(
                f"// {_label(workload, number)}\n{print_program(result.programs[number])}", end=""
            )
    if output is not None:
        print_note(str(output), quiet=quiet or json_)


def _write(output: Path, result: Workload, number: int, *, force: bool) -> None:
    from flint.ir.text.printer import print_program

    if _is_workload(output):
        write_output(output, result.to_bytes(), OutputKind.WORKLOAD, force=force)
    else:
        text = print_program(result.programs[number]).encode()
        write_output(output, text, OutputKind.PROGRAM, force=force)


class _OptRun:
    """Passes applied to one program after another, with what is printed and noted of each."""

    def __init__(self, passes: tuple[Pass, ...], before: bool, after: bool, quiet: bool) -> None:
        self.passes = passes
        self.before = before
        self.after = after
        self.quiet = quiet
        self.table: list[AppliedDocument] = []

    def of(self, workload: Workload, numbers: Sequence[int]) -> Workload:
        """The workload with these of its programs after the passes."""
        from flint.passes.pass_list import spelled_pass

        programs = list(workload.programs)
        for number in numbers:
            programs[number] = self.apply(programs[number], _label(workload, number))
        spelled = ",".join(map(spelled_pass, self.passes))
        metadata = {**workload.metadata, **({"passes": spelled} if self.passes else {})}
        return replace(workload, programs=tuple(programs), metadata=metadata)

    def apply(self, program: Program, label: str) -> Program:
        from flint.ir.text.printer import print_program
        from flint.passes.base import apply_pass
        from flint.passes.pass_list import spelled_pass

        for one in self.passes:
            spelled = spelled_pass(one)
            if self.before:
                print_text(f"// {label}, before {spelled}\n{print_program(program)}", end="")
            rows = len(program)
            program, seconds = apply_pass(one, program)
            if self.after:
                print_text(f"// {label}, after {spelled}\n{print_program(program)}", end="")
            note = f"{label}: {spelled}: {rows:,} -> {len(program):,} rows, {seconds:.3f} s"
            print_note(note, quiet=self.quiet)
            self.table.append(
                {"pass": spelled, "program": label, "rows_before": rows, "rows_after": len(program)}
            )
        return program


def _load(path: Path) -> Workload:
    """What is in a file, text or not. Raises FlintError FL301, FL304, FL307."""
    from flint.cli.inputs import load_workload
    from flint.io.bounded import FileKind, is_file, read_bounded
    from flint.ir.text.parser import is_program_text, parse_program
    from flint.ir.workload import Workload

    if is_file(path):
        data = read_bounded(path, FileKind.PROGRAM, "FL301")
        if is_program_text(data):
            text = data.decode("utf-8", errors="replace")
            return Workload.single(parse_program(text, str(path)), {"source": path.name})
    return load_workload(path)


def _chosen(workload: Workload, rank_class: int | None) -> list[int]:
    """Numbers of the programs to look at. Raises FlintError FL503 for a class that is not there."""
    from flint.errors import FlintError

    if rank_class is None:
        return list(range(len(workload.programs)))
    if not 0 <= rank_class < len(workload.classes):
        last = len(workload.classes) - 1
        raise FlintError(
            "FL503", f"there is no rank class {rank_class}", help=f"classes are 0 to {last}"
        )
    return [workload.classes[rank_class].program]


def _can_write(output: Path | None, numbers: list[int]) -> None:
    """Raises FlintError FL218 where text would hold several programs."""
    from flint.errors import FlintError

    if output is not None and not _is_workload(output) and len(numbers) > 1:
        raise FlintError(
            "FL218",
            f"{output} would hold {len(numbers)} programs, but text holds only one",
            help="choose one with --rank-class N, or write all to a .flint file",
        )


def _is_workload(output: Path) -> bool:
    return output.suffix == ".flint"


def _label(workload: Workload, number: int) -> str:
    names = [c.name for c in workload.classes if c.program == number]
    return f"program {number}" + (f" ({', '.join(names[:4])})" if names else "")
