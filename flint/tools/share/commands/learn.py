"""`flint learn`: a generator of workloads, trained on captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import Json, Quiet, Verbose
from flint.cli.paths import READS, Force, Writes
from flint.cli.progress import stages_shown
from flint.io.outputs import OutputKind, write_output
from flint.text import format_bytes

if TYPE_CHECKING:
    from flint.schemas.documents.synth import LearnDocument


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
        typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write the model."),
        Writes(OutputKind.GENERATOR),
    ],
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Steps of training.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the training.")] = 0,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory",
            help="Keep the steps of captures, which samples then follow, or weights and counts alone.",
        ),
    ] = True,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Train a generator of workloads on captures.

    The model keeps the steps of its captures without names and sizes, and totals with two digits: what it gives away
    of them, docs/synth.md says. Needs PyTorch.
    """
    from flint.tools.share.captures import captures_of
    from flint.tools.share.synthesize import TRAINING_STEPS, examples_of, learned

    chosen = TRAINING_STEPS if steps is None else steps
    with stages_shown(quiet=quiet or json_):
        found = list(captures_of(captures))
        examples = examples_of(found)
        generator = learned(examples, seed=seed, steps=chosen, memory=memory)
        data = generator.to_bytes()
        write_output(output, data, OutputKind.GENERATOR, force=force)
    document: LearnDocument = {
        "schema": "flint.learn/1",
        "output": str(output),
        "captures": len(examples),
        "left_out": len(found) - len(examples),
        "templates": len(generator.vocabulary),
        "steps": chosen,
        "seed": seed,
        "num_bytes": len(data),
    }
    if json_:
        print_json(document)
        return
    print_text(_text(document), end="")
    print_note(f"wrote   {output}", quiet=quiet)


def _text(document: LearnDocument) -> str:
    left_out = f", {document['left_out']} left out" if document["left_out"] else ""
    return (
        f"captures   {document['captures']}{left_out}\n"
        f"templates  {document['templates']:,}\n"
        f"steps      {document['steps']:,}\n"
        f"model      {format_bytes(document['num_bytes'])}\n"
    )
