"""Nodes of a graph that belong to no stage: every stage can compute them for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flint.frontends.torch_graph import constraints as _constraints  # noqa: F401 - registers ops
from flint.frontends.torch_graph.export import Input
from flint.frontends.torch_graph.partition import VIEWS

#: What leaves a parameter what it is. All else that reads one is the work of some layer.
_SAME_PARAMETER = VIEWS | {torch.ops.flint.constrain.default}


class FreeNodes:
    """What follows from buffers, constants and arguments alone (masks, tables of angles), and
    views and placements of parameters; `nodes` holds the placeholders too.
    """

    def __init__(self, nodes: Sequence[Any], described: Mapping[Any, Input]) -> None:
        self._base: dict[Any, Any] = {}
        self._writers: dict[Any, list[Any]] = {}
        of_parameter: dict[Any, bool] = {}
        for node in nodes:
            if node.op == "placeholder":
                of_parameter[node] = described[node].kind == "parameter"
            elif node.op == "output" or not all(i in of_parameter for i in node.all_input_nodes):
                continue
            elif any(of_parameter[i] for i in node.all_input_nodes):
                if node.target in _SAME_PARAMETER:
                    of_parameter[node] = True
            elif self._is_repeatable(node):
                of_parameter[node] = False
        self.nodes = frozenset(of_parameter)

    def writers(self, node: Any) -> Sequence[Any]:
        """The free nodes that write into the memory of a free node."""
        return self._writers.get(self._base.get(node, node), ())

    def _is_repeatable(self, node: Any) -> bool:
        """Whether a second call gives the same, and changes nothing but what a stage made."""
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return False
        schema = getattr(node.target, "_schema", None)
        aliased = [a.alias_info for a in schema.arguments] if schema is not None else []
        if any(aliased) and isinstance(node.args[0], torch.fx.Node):
            self._base[node] = self._base.get(node.args[0], node.args[0])
        if schema is None or not schema.is_mutable:
            return True
        written = [i for i, alias in enumerate(aliased) if alias is not None and alias.is_write]
        base = self._base.get(node)
        if written != [0] or base is None or base.op == "placeholder":
            return False
        self._writers.setdefault(base, []).append(node)
        return True
