"""`flint propose`: shardings for a program that has none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import Force, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import takes_requests
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.requests.option import Form, Request, option

if TYPE_CHECKING:
    from flint.steps.entry import AnyStep
    from flint.tools.explore.propose.answer import Proposal


@dataclass(frozen=True)
class ProposeRequest(Request):
    """What is proposed for, and how thoroughly."""

    model: str = option(
        metavar="MODEL[:NAME]",
        key="model",
        required=True,
        reads=True,
        help="A model file (.py) whose entry returns a step of one device.",
    )
    devices: int = option(
        "--devices",
        "-n",
        form=Form.NUMBER,
        default=8,
        metavar="N",
        least=1,
        help="Number of devices.",
    )
    cluster: str = option(
        "--cluster", "-c", default="h100-dgx", metavar="NAME|FILE", names="clusters", reads=True,
        help="Machine: a preset or a file.",
    )  # fmt: skip
    args: str | None = option(
        "--args", metavar="FILE.py:NAME", reads=True,
        help="Arguments for a function that is not an entry.",
    )  # fmt: skip
    hold: Sequence[str] = option(
        "--hold", form=Form.PAIRS, default=(), metavar="NAME=VALUE",
        help="Option of the entry, as --set of flint capture (repeatable).",
    )  # fmt: skip
    memory: str = option(
        "--memory", default="1", metavar="SHARE",
        help="Share of a device's memory that a step may take.",
    )  # fmt: skip
    tries: int = option(
        "--tries", form=Form.NUMBER, default=20, metavar="N", least=2,
        help="Plans to capture and estimate.",
    )  # fmt: skip
    compiler: str = option(
        "--compiler", default="", words=("", "xla-gpu", "xla-tpu"),
        help="Let XLA's whole compiler judge the best three.",
    )  # fmt: skip
    study: Path | None = option(
        "--study", form=Form.PATH, metavar="FILE", role=Writes(OutputKind.RESULTS, adds=True),
        help="Keep results in this file, and reuse them.",
    )  # fmt: skip


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.py", help="Write the proposal as a model file."),
    Writes(OutputKind.MODEL),
]


@takes_requests
def propose(
    asked: ProposeRequest,
    output: Output = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Propose shardings for a program that has none.

    Reads which dimensions of the traced program go together, prices meshes and shardings, captures and
    estimates the best, with data parallel, ZeRO-1 and fully sharded always among them. Prints the best, why the
    second lost, what would change the choice, and lines to paste.
    """
    from flint.tools.explore.propose.answer import propose_document
    from flint.tools.explore.propose.api import propose as proposed

    if output is not None:
        refuse_to_replace(output, OutputKind.MODEL, force=force)
    with stages_shown(quiet=quiet or json_), _step(asked) as step:
        found = proposed(
            step,
            devices=asked.devices,
            cluster=asked.cluster,
            memory=_share(asked.memory),
            tries=asked.tries,
            compiler=asked.compiler,
            study=asked.study,
        )
        told = propose_document(found) if json_ else found.to_text()
        text = "" if output is None else _file(asked, found, output)
    if isinstance(told, str):
        print_text(told)
    else:
        print_json(told)
    if output is not None:
        write_output(output, text.encode(), OutputKind.MODEL, force=force)
        print_note(f"wrote   {output}", quiet=quiet or json_)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FlintError("FL939", f"--memory {text}: '{text}' is not a number",
                         help="write --memory 0.9") from None  # fmt: skip


@contextlib.contextmanager
def _step(asked: ProposeRequest) -> Iterator[AnyStep]:
    """The step of the model file, for a mesh of one device. Raises what loading the file raises."""
    from flint.frontends.contained import contained
    from flint.frontends.model_file import ModelFile, Target, importable
    from flint.steps.input_kind import InputKind, input_kind
    from flint.steps.options import parse_settings

    target = Target.parse(asked.model)
    if input_kind(target.path) is not InputKind.PYTHON:
        raise FlintError(
            "FL936",
            f"{target.path.name} is a program that was lowered: no sharding can be put on it",
            help="give the Python file of its step",
        )
    args = Target.parse(asked.args) if asked.args is not None else None
    with importable(target.path.parent), contained():
        file = ModelFile.read(target)
        axes = file.option_taker(args).axes or ("data", "model")
        mesh = ",".join(f"{name}=1" for name in axes)
        yield file.step(mesh, args=args, settings=parse_settings(list(asked.hold), "--hold")).step


def _file(asked: ProposeRequest, found: Proposal, output: Path) -> str:
    from flint.tools.explore.propose.words import model_file

    folder = output.resolve().parent

    def seen(text: str) -> str:
        path, colon, name = text.rpartition(":")
        file, rest = (path, colon + name) if path.endswith(".py") else (text, "")
        return os.path.relpath(Path(file).resolve(), folder) + rest

    return model_file(
        found.origin,
        found.plan,
        model=seen(asked.model),
        args=seen(asked.args) if asked.args is not None else None,
        settings=asked.hold,
        title=f"{Path(asked.model).name} on {asked.devices} devices of {asked.cluster}: {found.said(found.plan)}",
    )
