"""When two stages compute the same, and what a stage holds in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.frontends.torch_graph.blocks import graph_fingerprint, plain_arguments, tensor_type
from flint.frontends.torch_graph.names import module_path
from flint.frontends.torch_graph.stage_graphs import StageGraph


class Renumbered:
    """Names of modules and parameters with numbers that begin at 0 in each list of a stage.

    >>> name = Renumbered()
    >>> name("layers.8.wq.weight"), name("layers.9.wq.weight")
    ('layers.0.wq.weight', 'layers.1.wq.weight')
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def __call__(self, name: str) -> str:
        parts = name.split(".")
        found: list[str] = []
        for depth, part in enumerate(parts):
            if part.isdecimal():
                known = self._numbers.setdefault(".".join(parts[:depth]), {})
                part = str(known.setdefault(part, len(known)))
            found.append(part)
        return ".".join(found)


def stage_key(stage: StageGraph) -> Any:
    """Equal for stages that compute the same from arguments that are sharded alike."""
    name = Renumbered()
    inputs = tuple(
        (i.port.role, name(i.port.name), i.port.number, i.kind, str(i.spec), i.trainable)
        for i in stage.inputs
    )
    nodes = list(stage.graph_module.graph.nodes)
    numbers = {n: i for i, n in enumerate(nodes)}
    steps = []
    for node in nodes:
        target = "" if node.op in ("placeholder", "output") else node.target
        if node.op == "get_attr":
            target = graph_fingerprint(getattr(stage.graph_module, node.target))
        arguments = plain_arguments((node.args, node.kwargs), numbers)
        if node.op == "placeholder":
            arguments = ()
        kind = tensor_type(node.meta.get("val"))
        steps.append((node.op, target, arguments, kind, name(module_path(node))))
    return inputs, tuple(steps), stage.outputs, tuple(map(str, stage.boundary))


def stage_label(stage: StageGraph, begins: Sequence[str], loss: bool) -> str:
    """`tok_embeddings, layers 0-7`: lists of modules with numbers, others by their names.

    Modules are named as deep as those where the cut lies.
    """
    depth = max((b.count(".") for b in begins), default=0) + 1
    units: dict[tuple[str, int | None], None] = {}
    for path in stage.paths:
        units[_unit(path, depth)] = None
    shown: list[str] = []
    run: list[int] = []
    before: str | None = None
    for name, number in (*units, ("", None)):
        if run and (name != before or number != run[-1] + 1):
            shown.append(_numbered(before or "", run))
            run = []
        if number is None:
            shown.append(name)
        else:
            run.append(number)
        before = name
    return ", ".join([*(s for s in shown if s), *(["loss"] if loss else [])])


def _unit(path: str, depth: int) -> tuple[str, int | None]:
    parts = path.split(".")[:depth]
    number = next((i for i, p in enumerate(parts) if p.isdecimal()), None)
    if number is None:
        return ".".join(parts), None
    return ".".join(parts[:number]), int(parts[number])


def _numbered(name: str, run: Sequence[int]) -> str:
    numbers = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
    return f"{name or 'modules'} {numbers}"
