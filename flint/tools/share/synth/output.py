"""Writing workloads that were made: a folder of `.flint` files or of directories of traces, with an index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from flint.backends.chakra.writing.output import refuse_output, replaced_directory
from flint.errors import FlintError
from flint.tools.share.synth.synthesize import Synthetic
from flint.tracing import Trace

#: What each sample is of: `flint.synth/1` has the same.
INDEX = "index.json"


def refuse_folder(folder: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise FlintError FL903 for a folder in one of `inputs`, which are read; else as `refuse_output`."""
    for source in inputs:
        if folder.resolve().is_relative_to(source.resolve()):
            raise FlintError(
                "FL903",
                f"{folder} would be written into {source}, which is an input",
                help="give another place",
            )
    refuse_output(folder, inputs)


def written(
    samples: Iterable[Synthetic], folder: Path, *, traces: bool = False
) -> list[tuple[Path, Synthetic]]:
    """Write each sample as soon as it is made, and the index at the end: all of it or nothing.

    Raises FlintError FL501 to FL506 for what cannot be written.
    """
    found, index = [], []
    with replaced_directory(folder) as working:
        for number, sample in enumerate(samples):
            name = f"{number:05}" if traces else f"{number:05}.flint"
            if traces:
                Trace(sample.workload, {}).save(working / name)
            else:
                sample.workload.save(working / name)
            index.append(
                {
                    "path": name,
                    "seed": sample.seed,
                    "asked": sample.asked.to_json(),
                    "found": sample.found.to_json(),
                }
            )
            found.append((folder / name, sample))
        (working / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return found
