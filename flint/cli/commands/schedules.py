"""`flint schedules`: the schedules of pipelines, drawn, with their idle time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import Force, Json, Quiet, Verbose, Writes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output

if TYPE_CHECKING:
    from flint.cli.documents import (
        ImpossibleDocument,
        ScheduleDocument,
        SchedulesDocument,
        ScheduleSummaryDocument,
        UnitDocument,
    )
    from flint.passes.pipeline.schedule.simulate import TimedSchedule

SCHEMA: Final = "flint.schedules/1"


def schedules(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A schedule to draw (default: list them all).")
    ] = "",
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="Ranks of the pipeline.", max=256)
    ] = 4,
    microbatches: Annotated[
        int, typer.Option("--microbatches", metavar="N", help="Microbatches of a step.", max=4096)
    ] = 8,
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="N", help="Stages per rank (default: 1, or 2).", max=64),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write the drawing to a file."),
        Writes(OutputKind.DRAWING),
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Draw a pipeline schedule, or list all: how long ranks wait, what they hold.

    Stages are equal, sends take no time, and a whole backward pass takes twice as long as a forward
    pass.
    """
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    if not name:
        if svg is not None:
            raise FlintError("FL218", "--svg draws one schedule", help="give its NAME")
        _list({key: _timed(key, ranks, microbatches, chunks) for key in SCHEDULES}, json_=json_)
        return
    timed = _timed(name, ranks, microbatches, chunks)
    if isinstance(timed, FlintError):
        raise timed
    if svg is not None:
        from flint.passes.pipeline.schedule.pictures import svg as drawing

        write_output(svg, drawing(timed).encode(), OutputKind.DRAWING, force=force)
    if json_:
        document: SchedulesDocument = {"schema": SCHEMA, "schedule": _document(timed)}
        print_json(document)
    else:
        print_text(_drawn(timed))
    if svg is not None:
        print_note(f"{svg}: {name}", quiet=quiet)


def _timed(
    name: str, ranks: int, microbatches: int, chunks: int | None
) -> TimedSchedule | FlintError:
    """The schedule with its times, or why it is not possible with these numbers."""
    from flint.passes.pipeline.schedule.schedules import SCHEDULES
    from flint.passes.pipeline.schedule.simulate import timed

    if chunks is None:
        chunks = SCHEDULES[name].fewest_chunks if name in SCHEDULES else 1
    try:
        return timed(name, ranks, microbatches, chunks)
    except FlintError as error:
        return error


def _list(found: dict[str, TimedSchedule | FlintError], *, json_: bool) -> None:
    from flint.passes.pipeline.schedule.schedules import SCHEDULES
    from flint.text import headings, text_table

    if json_:
        document: SchedulesDocument = {"schema": SCHEMA, "schedules": list(_listed(found))}
        print_json(document)
        return
    columns = headings("name | >chunks | >waits | holds | ")
    rows = []
    for name, timed in found.items():
        if isinstance(timed, FlintError):
            rows.append((name, "", "", "", timed.message))
        else:
            cells = (name, str(timed.chunks), f"{float(timed.idle):.1%}", _held(timed))
            rows.append((*cells, SCHEDULES[name].summary))
    print_text(text_table(columns, rows))


def _listed(
    found: dict[str, TimedSchedule | FlintError],
) -> Iterator[ScheduleSummaryDocument | ImpossibleDocument]:
    for name, timed in found.items():
        if isinstance(timed, FlintError):
            yield {"name": name, "impossible": timed.message}
        else:
            yield _summary(timed)


def _held(timed: TimedSchedule) -> str:
    return ", ".join(map(str, timed.held))


def _summary(timed: TimedSchedule) -> ScheduleSummaryDocument:
    return {
        "name": timed.name,
        "ranks": timed.placement.ranks,
        "microbatches": timed.microbatches,
        "chunks": timed.chunks,
        "idle": float(timed.idle),
        "held": list(timed.held),
        "stages": [list(stages) for stages in timed.placement.stages_of],
    }


def _document(timed: TimedSchedule) -> ScheduleDocument:
    """All of a schedule: its passes rank by rank, each with the times when it starts and ends."""
    units: list[list[UnitDocument]] = [
        [
            {
                "pass": unit.work.name.lower(),
                "chunk": unit.chunk,
                "microbatch": unit.microbatch,
                "start": span.start,
                "end": span.end,
            }
            for unit, span in zip(order, spans, strict=True)
        ]
        for order, spans in zip(timed.orders, timed.spans, strict=True)
    ]
    return {**_summary(timed), "units": units}


def _drawn(timed: TimedSchedule) -> str:
    from flint.passes.pipeline.schedule.pictures import picture
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    return (
        f"{timed.name}: {SCHEDULES[timed.name].summary}\n\n{picture(timed)}\n"
        f"Each rank waits for {float(timed.idle):.1%} of the step.\n"
        f"Most passes whose activations a rank holds, from rank 0: {_held(timed)}."
    )
