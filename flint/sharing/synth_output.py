"""Writing workloads that were made: a folder of `.flint` files or of directories of traces, with an index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from flint.errors import FlintError
from flint.io.bounded import is_directory
from flint.io.files import cannot_write, write_atomically
from flint.sharing.synthesize import Synthetic
from flint.tracing import Trace

#: What each sample is of: `flint.synth/1` has the same.
INDEX = "index.json"


def refuse_folder(folder: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise FlintError FL501 for a folder that holds anything, FL502 for a file of its name.

    FL903: it is in one of `inputs`, which are read.
    """
    if folder.exists() and not is_directory(folder):
        raise FlintError("FL502", f"cannot write {folder}: it is a file", help="give another name")
    for source in inputs:
        if folder.resolve().is_relative_to(source.resolve()):
            raise FlintError(
                "FL903",
                f"{folder} would be written into {source}, which is read",
                help="give a place beside it",
            )
    if folder.exists() and any(folder.iterdir()):
        raise FlintError(
            "FL501", f"{folder} is not empty, and nothing is overwritten", help="give a new name"
        )


def written(
    samples: Iterable[Synthetic], folder: Path, *, traces: bool = False
) -> Iterator[tuple[Path, Synthetic]]:
    """Write each sample as soon as it is made, and the index at the end.

    Raises FlintError FL501 to FL506 for what cannot be written.
    """
    index = []
    for number, sample in enumerate(samples):
        path = folder / (f"{number:05}" if traces else f"{number:05}.flint")
        _write(sample, path, traces=traces)
        index.append(
            {
                "path": path.name,
                "seed": sample.seed,
                "asked": sample.asked.to_json(),
                "found": sample.found.to_json(),
            }
        )
        yield path, sample
    text = json.dumps(index, indent=1) + "\n"
    write_atomically(folder / INDEX, text.encode())


def _write(sample: Synthetic, path: Path, *, traces: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    if traces:
        Trace(sample.workload, {}).save(path)
    else:
        sample.workload.save(path)
