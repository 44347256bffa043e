"""`flint synth` and `flint learn`: workloads that nobody has, and the programs that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import takes_requests
from flint.text import format_bytes, format_flops, headings, text_table
from flint.tools.share.requests import SynthRequest

if TYPE_CHECKING:
    from flint.tools.share.documents import LearnDocument, SynthDocument
    from flint.tools.share.synth.conditions import Conditions
    from flint.tools.share.synth.synthesize import Synthetic


@takes_requests
def synth(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to write; it must not exist, or be empty."
        ),
        Writes(or_traces=True),
    ],
    *,
    request: SynthRequest,
    traces: Annotated[
        bool, typer.Option("--traces", help="Write directories of traces instead of .flint files.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Generate synthetic workloads.

    Each is a remembered program at other sizes with another body. It follows the rules of captured
    programs and meets the conditions within 10 %, or nothing is written. Equal options give equal
    files.
    """
    from flint.tools.share.synth.conditions import conditions_from_text
    from flint.tools.share.synth.synthesize import refuse_folder, synth, written

    like = list(map(Path, request.like))
    refuse_folder(output, like)
    asked = conditions_from_text(request)
    with stages_shown(quiet=quiet or json_):
        samples = synth(
            request.count, asked=asked, like=like, model=request.model, seed=request.seed
        )
        found = written(samples, output, traces=traces)
    if json_:
        document: SynthDocument = {
            "schema": "flint.synth/1",
            "output": str(output),
            "model": str(request.model or "default"),
            "samples": [sample.to_json(str(path)) for path, sample in found],
        }
        print_json(document)
    else:
        rows = [_line(path, sample) for path, sample in found]
        print_text(text_table(_COLUMNS, rows) + "\n", end="")
        print_note(f"wrote   {len(found)} workloads: {output}", quiet=quiet)


_COLUMNS = headings(
    "sample | mesh | >layers | >rows | >FLOPs | >asked | >sent | >asked | >memory | >asked"
)


def _line(path: Path, sample: Synthetic) -> list[str]:
    has, asked = sample.found, sample.asked
    return [
        path.name,
        str(has.mesh),
        str(has.depth),
        f"{has.rows:,}",
        *_pair(has.flops, asked.flops, format_flops),
        *_pair(_sent(has), _sent(asked), format_bytes),
        *_pair(has.memory_bytes, asked.memory_bytes, format_bytes),
    ]


def _sent(totals: Conditions) -> float | None:
    return sum(totals.axis_bytes.values()) if totals.axis_bytes else None


def _pair(has: float | None, asked: float | None, text: Callable[[int], str]) -> tuple[str, str]:
    return text(round(has or 0)), "" if asked is None else text(round(asked))


def learn(
    captures: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Captures: .flint files, directories of traces, or folders of them.",
        ),
        READS,
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to write; it must not exist, or be empty."
        ),
        Writes(or_traces=True),
    ],
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Remember captured programs, for flint synth --model.

    The folder holds each program once, without names and sources, as flint anonymize writes it:
    structure and sizes still identify it. Share what flint synth makes from it, not the folder.
    """
    from flint.tools.share.synth.remembered import Remembered, captures_of
    from flint.tools.share.synth.synthesize import refuse_folder

    refuse_folder(output, captures)
    with stages_shown(quiet=quiet or json_):
        found = list(captures_of(captures))
        remembered = Remembered.of(found)
        remembered.save(output)
    document: LearnDocument = {
        "schema": "flint.learn/2",
        "output": str(output),
        "captures": len(found),
        "remembered": len(remembered.workloads),
        "rows": [len(w.programs[0]) for w in remembered.workloads],
    }
    if json_:
        print_json(document)
        return
    print_text(f"remembered {document['remembered']} of {document['captures']} captures", end="\n")
    print_note(f"wrote   {output}", quiet=quiet)
