"""A stage's joint function, partitioned, into the parts that a schedule orders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flint.ir.edit import Editor
from flint.passes.pipeline.split.classify import BACKWARD, FORWARD, GATHER, WEIGHTS, classify
from flint.passes.pipeline.split.cut_rows import cut
from flint.passes.pipeline.split.gathers import gathered_once, regathered, shared_rows, with_gather
from flint.passes.pipeline.split.parts import (
    Key,
    OpenBody,
    Partial,
    PartitionedBody,
    StageParts,
    StageProgram,
    alive,
    opened,
)
from flint.passes.pipeline.split.reach import dependent, readers_as_bits
from flint.passes.pipeline.split.reduce_part import reduce_part
from flint.passes.pipeline.split.reductions import Tail, Tails, Type, apply_changes, reducing
from flint.steps.captured import Port, Role


def split(
    body: PartitionedBody,
    *,
    zero_bubble: bool = False,
    keep_gathered: bool = False,
    accumulates: bool = True,
) -> StageParts:
    """Split the partitioned joint program of one stage for one microbatch.

    `zero_bubble` splits the backward pass in what the stage before waits for and the rest.
    `keep_gathered` gathers sharded parameters once in a step instead of in each pass.
    `accumulates` says that there are several microbatches, whose gradients are added up before
    they are reduced over devices; without it they are reduced where the backward pass has them.
    A body without gradients gives a forward part alone.
    """
    whole = regathered(opened(body))
    gradients = _gradients(whole)
    if not any(_is_backward(key) for key in whole.results):
        return _inference(whole, keep_gathered)
    tails = _tails(whole, gradients) if accumulates else {}
    open_body, types = _unreduced(whole, gradients, tails)
    numbers = [FORWARD, BACKWARD, WEIGHTS] if zero_bubble else [FORWARD, BACKWARD]
    parts = _parts(open_body, numbers, zero_bubble, keep_gathered)
    return StageParts(
        forward=parts[FORWARD],
        backward=parts[BACKWARD],
        weights=parts.get(WEIGHTS),
        gather=parts.get(GATHER),
        reduce=reduce_part(whole.program, types, tails) if gradients else None,
        undeferred=_undeferred(open_body) if accumulates else (),
    )


def _inference(body: OpenBody, keep_gathered: bool) -> StageParts:
    parts = _parts(body, [FORWARD], zero_bubble=False, keep_gathered=keep_gathered)
    return StageParts(parts[FORWARD], gather=parts.get(GATHER))


def _parts(
    body: OpenBody, numbers: list[int], zero_bubble: bool, keep_gathered: bool
) -> dict[int, StageProgram]:
    """The parts of one microbatch, and GATHER if parameters are kept gathered and some are."""
    gathers: list[int] = []
    if keep_gathered:
        body, gathers = gathered_once(body)
    classes = classify(body, zero_bubble=zero_bubble)
    if gathers:
        return cut(body, with_gather(classes, gathers), [GATHER, *numbers])
    return cut(body, classes, numbers)


def _is_backward(key: Key) -> bool:
    return isinstance(key, Port) and key.role in (Role.GRADIENT, Role.INPUT_GRADIENT)


def _gradients(body: OpenBody) -> dict[str, int]:
    """Rows of the gradients of parameters, by name."""
    found = body.results.items()
    return {k.name: r for k, r in found if isinstance(k, Port) and k.role is Role.GRADIENT}


def _tails(body: OpenBody, gradients: Mapping[str, int]) -> dict[str, Tail]:
    """What can be done once in a step, for each gradient for which there is such work."""
    finder = Tails(body, shared_rows(body))
    found = {name: finder.find(row) for name, row in gradients.items()}
    return {name: tail for name, tail in found.items() if tail is not None}


def _unreduced(
    body: OpenBody, gradients: Mapping[str, int], tails: Mapping[str, Tail]
) -> tuple[OpenBody, dict[str, Type]]:
    """The body that gives partial gradients, and what these are."""
    edit = Editor(body.program)
    ports = _ports(gradients)
    results = {k: r for k, r in body.results.items() if k not in ports}
    types = {}
    known = Tails(body, shared_rows(body))
    for name, row in gradients.items():
        tail = tails.get(name)
        results[Partial(name)] = tail.base if tail else row
        types[name] = tail.type if tail else known.type_of(row)
        apply_changes(edit, tail.changes if tail else ())
    return alive(body.moved(edit, results)), types


def _ports(gradients: Mapping[str, int]) -> set[Key]:
    return {Port(Role.GRADIENT, name) for name in gradients}


def _undeferred(body: OpenBody) -> tuple[str, ...]:
    """Parameters whose gradient alone needs a sum over devices that is left."""
    bits: dict[int, int] = {}
    names: list[str] = []
    for key, row in body.results.items():
        bits[row] = bits.get(row, 0) | 1 << len(names)
        names.append(key.name if isinstance(key, Partial) else "")
    alone = readers_as_bits(body.program, bits)
    gradient = dependent(body.program, body.seeds(Role.COTANGENT))
    found = set()
    for row in np.flatnonzero(gradient).tolist():
        if reducing(body.program, row) and alone[row] & (alone[row] - 1) == 0:
            found.add(names[alone[row].bit_length() - 1])
    return tuple(sorted(found - {""}))
