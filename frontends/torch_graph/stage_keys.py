"""When two stages compute the same, and what a stage holds in words."""

from __future__ import annotations

import os
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
    """`tok_embeddings, layers 0-7`: the modules of a stage, those in lists by their numbers.

    A module is named at the depth at which it parts from the lists that the cut lies in.
    """
    lists = [begin.split(".")[:-1] for begin in begins] or [[]]
    units = [u for u in dict.fromkeys(_unit(path, lists) for path in stage.paths) if u]
    shown: list[str] = []
    while units:
        name, number = units.pop(0)
        last = number
        while last is not None and units and units[0] == (name, last + 1):
            _, last = units.pop(0)
        shown.append(name if number is None else f"{name or 'modules'} {_range(number, last)}")
    return ", ".join([*shown, *(["loss"] if loss else [])])


def _unit(path: str, lists: Sequence[Sequence[str]]) -> tuple[str, int | None] | None:
    """A module by name, or by list and number; None for one that holds a list."""
    parts = path.split(".")
    depth = max(len(os.path.commonprefix([parts, list(of)])) for of in lists)
    if len(parts) <= depth:
        return None
    if parts[depth].isdecimal():
        return ".".join(parts[:depth]), int(parts[depth])
    return ".".join(parts[: depth + 1]), None


def _range(first: int, last: int | None) -> str:
    return str(first) if last == first else f"{first}-{last}"
