"""`flint grow`: a captured workload with more layers, other sizes or another mesh, without its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import Json, Quiet, Verbose
from flint.cli.paths import READS, Force, Writes
from flint.cli.progress import stages_shown
from flint.io.outputs import OutputKind

if TYPE_CHECKING:
    from flint.tools.share.documents import GrowDocument
    from flint.tools.share.growing.grow import Grown

SCHEMA: Final = "flint.grow/1"
_SIZES = "Model"


def _size(option: str, what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        option, metavar="N|Nx", help=what, rich_help_panel=_SIZES
    )
    return found


def grow(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .flint file, or a directory that flint capture or flint anonymize wrote.",
        ),
        READS,
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.flint|DIR", help="Where to write the result."),
        Writes(OutputKind.WORKLOAD, or_traces=True),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", "-m", metavar="SPEC", help="The same axes with other sizes: 16x4."),
    ] = None,
    layers: Annotated[str | None, _size("--layers", "Layers: 32, or 4x.")] = None,
    width: Annotated[str | None, _size("--width", "Width of the model, alone.")] = None,
    ffn: Annotated[str | None, _size("--ffn", "Width within feed-forward blocks.")] = None,
    heads: Annotated[str | None, _size("--heads", "Heads of queries.")] = None,
    kv_heads: Annotated[str | None, _size("--kv-heads", "Heads of keys and values.")] = None,
    head_size: Annotated[str | None, _size("--head-size", "Numbers of each head.")] = None,
    vocabulary: Annotated[str | None, _size("--vocabulary", "Words.")] = None,
    experts: Annotated[str | None, _size("--experts", "Experts of each layer.")] = None,
    slots: Annotated[
        str | None,
        _size("--slots", "Slots of an expert (default: they follow tokens and experts)."),
    ] = None,
    sequence: Annotated[
        str | None, _size("--sequence", "Tokens of a sequence; places of a cache.")
    ] = None,
    batch: Annotated[
        str | None, _size("--batch", "Sequences over all devices; 2x: twice as many on each.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="dN=SIZE", help="Set a variable by its name; repeatable."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", metavar="dN=AXES", help="Say which axes split a variable: d7=data+model."
        ),
    ] = None,
    keep_global_batch: Annotated[
        bool,
        typer.Option(
            "--keep-global-batch",
            help="A larger mesh leaves less of the batch on each device (default: as much).",
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List variables and roles, as without any change.")
    ] = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a workload as it would be with more layers, other sizes or another mesh.

    The source is not needed: what follows from what is read off rows. Sizes are whole ones, over all devices. Without
    changes, lists what can be changed.
    """
    from flint.tools.share.growing.grow import Wish, grown, refuse_source
    from flint.tools.share.growing.plan import pairs_of
    from flint.tools.share.inputs import read_source
    from flint.tools.share.output import refuse_place

    roles = {
        "layers": layers,
        "width": width,
        "ffn": ffn,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "vocabulary": vocabulary,
        "experts": experts,
        "slots": slots,
        "sequence": sequence,
        "batch": batch,
    }
    wish = Wish(
        None if list_ else mesh,
        {} if list_ else {name: size for name, size in roles.items() if size is not None},
        {} if list_ else dict(pairs_of("--set", tuple(set_ or ()))),
        pairs_of("--split", tuple(split or ())),
        keep_global_batch,
    )
    _require_change(wish.changes, output)
    if output is not None:
        refuse_place(output, path, force=force)
    with stages_shown(quiet=quiet or json_):
        source = read_source(path)
        found = grown(refuse_source(source), wish, source)
    files = found.save(output, force=force) if output is not None else 0
    if json_:
        print_json(_document(found, output, files, changes=wish.changes))
    else:
        _print(found, output, changes=wish.changes, quiet=quiet)


def _require_change(changes: bool, output: Path | None) -> None:
    """Raise FlintError FL920 for a place to write to, and nothing to write."""
    from flint.errors import FlintError

    if output is not None and not changes:
        raise FlintError(
            "FL920",
            "nothing is to change",
            help="give --layers, --mesh, --width or another size; flint grow IN lists them",
        )


def _print(found: Grown, output: Path | None, *, changes: bool, quiet: bool) -> None:
    from flint.tools.share.growing.show import grown_text, listing_text

    print_text(grown_text(found) if changes else listing_text(found), end="")
    if output is not None:
        print_note(f"wrote   {output}", quiet=quiet)
    elif changes:
        print_note("nothing was written: give -o", quiet=quiet)


def _document(found: Grown, output: Path | None, files: int, *, changes: bool) -> GrowDocument:
    return {
        "schema": SCHEMA,
        "output": None if output is None else str(output),
        "files": files,
        "mesh": found.workload.mesh.shape,
        "old_mesh": found.original.mesh.shape,
        "rows": [len(p) for p in found.workload.programs],
        "variables": [
            {
                "name": v.name,
                "value": v.value,
                "whole": v.whole,
                "roles": list(v.roles),
                "certain": v.is_certain,
                "axes": list(v.axes),
                "how": v.how,
                "rows": v.rows,
                "flops_share": v.share,
                "new_value": v.new_value,
                "new_whole": v.new_whole,
            }
            for v in found.variables
        ],
        "changes": [{"name": c.name, "before": c.before, "after": c.after} for c in found.changes]
        if changes
        else [],
        "assumed": list(found.assumed),
    }
