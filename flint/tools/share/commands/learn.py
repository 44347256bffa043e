"""`flint learn`: the programs that `flint synth` makes others of, from captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown

if TYPE_CHECKING:
    from flint.tools.share.documents import LearnDocument


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
