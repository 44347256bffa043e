"""The captures that a surface is made of, and where they are kept."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from flint.capturing import captured_from
from flint.errors import FlintError
from flint.frontends.contained import contained
from flint.frontends.model_file import ModelFile, Target, importable
from flint.io.inputs import CHANGED, ReadInput, environment_of, inputs_noted
from flint.ir.workload import Workload
from flint.log import stage
from flint.passes.compilers.cache import find, key_of, store
from flint.requests.capture import CaptureRequest
from flint.steps.input_kind import InputKind, input_kind
from flint.tools.serve.surface.sizes import FEW_LAYERS, SIZES, PassSizes

_NEEDS = (
    "give an entry with the options batch, new and context (tokens that the pass computes, and tokens "
    "in the cache before it, of each sequence): examples/serve_jax.py, docs/serve.md"
)


@dataclass(frozen=True, eq=False)
class PassCaptures:
    """Captures of a model at `points`.

    Those of a model of many equal layers are of `FEW_LAYERS`, and `whole` are the first and the last with all
    layers: they say how often each kernel runs, and what is in memory.
    """

    request: CaptureRequest
    points: Sequence[PassSizes]
    workloads: Sequence[Workload]
    whole: Sequence[Workload] = ()

    def in_full(self) -> PassCaptures:
        """All of them with all layers."""
        return captures(self.request, self.points, few=False)


def captures(
    request: CaptureRequest, points: Sequence[PassSizes], *, few: bool = True
) -> PassCaptures:
    """The model at each of some sizes, in one process that imports it once; with `few` layers where it can.

    What was captured is kept in the cache folder of compiled programs (FLINT_CACHE_DIR) and used again
    while the first and the last capture, what these two read (modules, files, names in folders), the
    environment and everything installed are the same. Raises
    FlintError FL893 for a model that no sizes can be given to, and what capturing raises.
    """
    _require_entry(request)
    target = Target.parse(request.model)
    folder = target.path.parent
    with inputs_noted(folder) as inputs, importable(folder), contained(), stage("capture"):
        file = ModelFile.read(target)
        ends = [_captured(file, request, sizes) for sizes in (points[0], points[-1])]
        programs = b"".join(workload.to_bytes() for workload in ends)
        read = inputs()
        key = key_of({**_identity(request, points, read), "few": few}, programs)
        is_stable = all(one.digest != CHANGED for one in read)
        kept = find(key) if is_stable else None
        if kept is not None:
            with suppress(FlintError, ValueError):
                found = _unpacked(*kept)
                return PassCaptures(request, points, found[: len(points)], found[len(points) :])
        found = _of_few_layers(file, request, points) if few else []
        if found:
            found += ends
        else:
            inner = [_inner(file, request, sizes) for sizes in points[1:-1]]
            found = [ends[0], *inner, ends[1]]
    if is_stable:
        packed = [workload.to_bytes() for workload in found]
        store(key, {"lengths": [len(p) for p in packed]}, b"".join(packed))
    return PassCaptures(request, points, found[: len(points)], found[len(points) :])


#: Options of an entry that are taken for its number of layers.
_LAYERS: Final = ("num_layers", "n_layers", "num_hidden_layers", "layers", "depth")


def _of_few_layers(
    file: ModelFile, request: CaptureRequest, points: Sequence[PassSizes]
) -> list[Workload]:
    """Captures of a model that is cut short; none where no option, or not such a one, does that."""
    args = Target.parse(request.args) if request.args is not None else None
    function = file.option_taker(args).function
    known = inspect.signature(function).parameters if function is not None else ()
    name = next((name for name in _LAYERS if name in known), None)
    given = dict(text.partition("=")[::2] for text in request.settings)
    asked = given.get(name or "", "")
    if name is None or (asked.isdigit() and 0 < int(asked) <= FEW_LAYERS):
        return []
    rest = tuple(t for t in request.settings if t.partition("=")[0] != name)
    short = replace(request, settings=(*rest, f"{name}={FEW_LAYERS}"))
    with suppress(FlintError):
        return [_captured(file, short, sizes) for sizes in points]
    return []


def _require_entry(request: CaptureRequest) -> None:
    given = {text.partition("=")[0] for text in request.settings}
    taken = given.intersection(SIZES)
    if taken:
        raise FlintError(
            "FL893",
            f"--set {min(taken)} is a size of a pass, which flint serve chooses",
            help="omit it; requests say how long prompts and outputs are",
        )
    if request.world or input_kind(Target.parse(request.model).path) is not InputKind.PYTHON:
        raise FlintError("FL893", f"{request.model} is no model file with an entry", help=_NEEDS)
    if request.pipeline.given():
        raise FlintError(
            "FL893",
            "flint serve has no pipelines",
            help="split the model by tensor or expert parallelism, --mesh model=8",
        )


def _inner(file: ModelFile, request: CaptureRequest, sizes: PassSizes) -> Workload:
    """A capture at other sizes than the first and the last, which have been captured."""
    try:
        return _captured(file, request, sizes)
    except FlintError as error:
        raise FlintError(
            "FL893",
            f"the model runs at some sizes, but not at {sizes}: {error.message}",
            place=error.place,
            help="engines take any batch: a batch that is divided over devices (data parallel attention) is not "
            "served; divide heads and experts, and give --replicas",
        ) from error


def _captured(file: ModelFile, request: CaptureRequest, sizes: PassSizes) -> Workload:
    asked = (f"{name}={value}" for name, value in zip(SIZES, sizes, strict=True))
    try:
        return captured_from(file, replace(request, settings=(*request.settings, *asked))).workload
    except FlintError as error:
        if error.code == "FL216" and any(f"'{name}'" in str(error) for name in SIZES):
            raise FlintError("FL893", error.message, place=error.place, help=_NEEDS) from None
        raise


def _identity(
    request: CaptureRequest, points: Sequence[PassSizes], read: Sequence[ReadInput]
) -> dict[str, object]:
    """What other captures depend on beside the programs of two."""
    return {
        "points": points,
        "options": json.dumps(request.given(), default=str, sort_keys=True),
        "inputs": [(one.kind, one.path, one.digest) for one in read],
        **environment_of(name for name in os.environ if name not in _OF_A_SHELL),
    }


#: Variables that differ between two commands of one shell.
_OF_A_SHELL: Final = frozenset({"_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})


def _unpacked(facts: dict[str, object], data: bytes) -> list[Workload]:
    lengths, found, at = facts["lengths"], [], 0
    assert isinstance(lengths, list)
    for length in lengths:
        found.append(Workload.from_bytes(data[at : at + length]))
        at += length
    return found
