"""An exported graph cut into stages: a graph for each, and the values that go between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_graph import constraints as _constraints  # noqa: F401 - registers ops
from flint.frontends.torch_graph.constraints import text_of
from flint.frontends.torch_graph.export import Exported, Input
from flint.frontends.torch_graph.names import place_of, who_uses, without_root
from flint.frontends.torch_graph.partition import VIEWS
from flint.frontends.torch_private import schema_of
from flint.steps.captured import Port, Role

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


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

    def writers(self, node: torch.fx.Node) -> Sequence[Any]:
        """The free nodes that write into the memory of a free node."""
        return self._writers.get(self._base.get(node, node), ())

    def _is_repeatable(self, node: torch.fx.Node) -> bool:
        """Whether a second call gives the same, and changes nothing but what a stage made."""
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return False
        schema = schema_of(node.target)
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


@dataclass(frozen=True)
class StageInput:
    """An argument of a stage: its port, its sharding, and whether the user's module trains it."""

    port: Port
    kind: str
    spec: PartitionSpec
    trainable: bool = False


@dataclass(frozen=True)
class StageGraph:
    """A stage as a graph module whose placeholders are `inputs` and which returns `outputs`.

    Values from and for other stages are constrained to `boundary`, PartitionSpecs by number of the
    OUTPUT. `paths` are the modules that run in it, in order.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[StageInput, ...]
    outputs: tuple[Port, ...]
    boundary: tuple[Any, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What a cut has to keep to: how many values cross, and how values and inputs are sharded.

    `boundary(node, number)` is the PartitionSpec of a crossing value, `argument(input, shape)` that
    of a parameter, buffer, constant or argument of the module.
    """

    crossing: int
    boundary: Callable[[Any, int], Any]
    argument: Callable[[Input, tuple[int, ...]], Any]


def first_nodes(graph: torch.fx.Graph, modules: Sequence[str]) -> dict[str, Any]:
    """The first node of each of `modules` (or of a module inside it), where there is one."""
    wanted = set(modules)
    found: dict[str, Any] = {}
    for node in graph.nodes:
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            name = without_root(path)
            if path and name in wanted and node.op not in ("placeholder", "output"):
                found.setdefault(name, node)
    return found


def split_graph(
    exported: Exported, begins: Sequence[str], rules: Rules, trains: bool
) -> list[StageGraph]:
    """One graph for each stage; the modules `begins` are the first of all stages but the first.

    What follows from buffers, constants and arguments alone is computed again in every stage that
    reads it. Raises FlintError: FL241 (a module that computes nothing, or not after the one before
    it), FL244 (more values cross than `rules.crossing`).
    """
    splitter = _Splitter(exported, begins, rules, trains)
    return [splitter.stage(number) for number in range(len(begins) + 1)]


class _Splitter:
    """Which stage computes each node of a graph, and what crosses after each stage."""

    def __init__(
        self, exported: Exported, begins: Sequence[str], rules: Rules, trains: bool
    ) -> None:
        self.exported, self.rules, self.trains = exported, rules, trains
        self.nodes = list(exported.graph_module.graph.nodes)
        self.position = {n: i for i, n in enumerate(self.nodes)}
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.described = dict(zip(placeholders, exported.inputs, strict=True))
        self.free = FreeNodes(self.nodes, self.described)
        self.stage_of = self._assigned(begins)
        self.crossing = self._crossing(begins)

    def _assigned(self, begins: Sequence[str]) -> dict[Any, int]:
        """The stage of every node that belongs to one; the output belongs to the last."""
        starts = self._starts(begins)
        found: dict[Any, int] = {}
        stage = 0
        for node in self.nodes:
            while stage < len(starts) and node is starts[stage]:
                stage += 1
            if node.op == "output":
                found[node] = len(begins)
            elif node not in self.free.nodes:
                source = node.all_input_nodes[0] if node.target is operator.getitem else node
                found[node] = found.get(source, stage)
        for number, name in enumerate(("the model", *begins)):
            if not any(s == number and n.op != "output" for n, s in found.items()):
                raise _empty(name, begins)
        return found

    def _starts(self, begins: Sequence[str]) -> list[Any]:
        first = first_nodes(self.exported.graph_module.graph, begins)
        starts: list[Any] = []
        for number, name in enumerate(begins):
            if name not in first:
                raise FlintError(
                    "FL241",
                    f"the cut names '{name}', which computes nothing in this step",
                    help="name modules whose forward runs",
                )
            if starts and self.position[first[name]] <= self.position[starts[-1]]:
                raise FlintError(
                    "FL241",
                    f"the cut names '{name}' after '{begins[number - 1]}', which does not run "
                    "before it",
                    help="name the first module of each stage, in the order in which they run",
                )
            starts.append(first[name])
        return starts

    def _crossing(self, begins: Sequence[str]) -> list[list[Any]]:
        """For each stage but the last, the values that it hands on, in the order they are made."""
        last: dict[Any, int] = {}
        for number in range(len(begins) + 1):
            for node in self._reads(number):
                last[node] = number
        found = [
            [n for n in self.nodes if n in last and self.stage_of[n] <= s < last[n]]
            for s in range(len(begins))
        ]
        for number, values in enumerate(found):
            if not 1 <= len(values) <= self.rules.crossing:
                raise self._too_many(begins[number], values, number)
        return found

    def _reads(self, stage: int) -> list[Any]:
        """Values of a stage's nodes that no stage can make for itself."""
        read = (a for n, s in self.stage_of.items() if s == stage for a in n.all_input_nodes)
        return [n for n in dict.fromkeys(read) if n in self.stage_of]

    def _too_many(self, begin: str, values: Sequence[Any], stage: int) -> FlintError:
        shown = "; ".join(self._shown(v, stage) for v in values) or "none"
        return FlintError(
            "FL244",
            f"{len(values)} values cross the cut at '{begin}' ({shown}), but crossing is {self.rules.crossing}",
            place=next((p for p in map(place_of, values) if p), None),
            help="cut between layers, where one value goes on, or set crossing=",
        )

    def _shown(self, value: torch.fx.Node, stage: int) -> str:
        readers = [u for u in value.users if self.stage_of.get(u, -1) > stage]
        names = list(dict.fromkeys(map(who_uses, readers)))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"{_type(value.meta.get('val'))} from {who_uses(value)}, read by {shown}"

    # graphs -----------------------------------------------------------------------------------

    def stage(self, number: int) -> StageGraph:
        before = self.crossing[number - 1] if number else []
        after = self.crossing[number] if number < len(self.crossing) else None
        inside = [n for n, s in self.stage_of.items() if s == number and n.op != "output"]
        own, placeholders = self._needed(number, inside, before)
        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        inputs = [self._placeholder(graph, copies, n) for n in placeholders]
        inputs += [self._crossed(graph, copies, n, i) for i, n in enumerate(before)]
        for node in own:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if after is None:
            [results] = self.nodes[-1].args
            boundary: list[Any] = []
            outputs = [self._result(i, name) for i, name in enumerate(self.exported.outputs)]
            graph.output(tuple(copies[n] for n in results))
        else:
            boundary = [self.rules.boundary(n, i) for i, n in enumerate(after)]
            outputs = [Port(Role.OUTPUT, number=i) for i in range(len(after))]
            graph.output(
                tuple(
                    _on_boundary(graph, copies[n], s) for n, s in zip(after, boundary, strict=True)
                )
            )
        module = torch.fx.GraphModule(self.exported.graph_module, graph)
        return StageGraph(module, tuple(inputs), tuple(outputs), tuple(boundary), _paths(inside))

    def _needed(
        self, number: int, inside: Sequence[Any], before: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Nodes of a stage with those that are computed again, and its placeholders, in order."""
        given, found = set(before), set(inside)
        todo = [*inside, *([self.nodes[-1]] if number == len(self.crossing) else [])]
        while todo:
            for read in todo.pop().all_input_nodes:
                for node in (read, *self.free.writers(read)):
                    if node not in found and node not in given:
                        found.add(node)
                        todo.append(node)
        ordered = sorted(found, key=self.position.__getitem__)
        return [n for n in ordered if n.op != "placeholder"], [
            n for n in ordered if n.op == "placeholder"
        ]

    def _placeholder(
        self, graph: torch.fx.Graph, copies: dict[Any, Any], node: torch.fx.Node
    ) -> StageInput:
        described = self.described[node]
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
        spec = self.rules.argument(described, tuple(node.meta["val"].shape))
        role = Role.BATCH if described.kind == "input" else Role.PARAMETER
        trainable = self.trains and described.trainable
        return StageInput(Port(role, described.name), described.kind, spec, trainable)

    def _crossed(
        self, graph: torch.fx.Graph, copies: dict[Any, Any], node: torch.fx.Node, number: int
    ) -> StageInput:
        placeholder = graph.placeholder(node.name)
        placeholder.meta = {"val": node.meta["val"]}
        spec = self.rules.boundary(node, number)
        copies[node] = _on_boundary(graph, placeholder, spec)
        return StageInput(Port(Role.INPUT, number=number), "value", spec)

    def _result(self, number: int, name: str) -> Port:
        return Port(Role.LOSS) if self.trains else Port(Role.OUTPUT, name, number)


def _on_boundary(graph: torch.fx.Graph, value: torch.fx.Node, spec: PartitionSpec) -> torch.fx.Node:
    """A value between stages: it and its gradient are sharded as `spec` says."""
    text = text_of(spec)
    node = graph.call_function(torch.ops.flint.constrain.default, (value, text, text))
    stack = value.meta.get("nn_module_stack")
    node.meta = {"val": value.meta["val"]} | ({"nn_module_stack": stack} if stack else {})
    return node


def _paths(nodes: Sequence[Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        found[without_root(stack[-1][0]) if stack else ""] = None
    return tuple(p for p in found if p)


def _type(value: torch.Tensor) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"


def _empty(name: str, begins: Sequence[str]) -> FlintError:
    what = (
        f"before '{begins[0]}'" if name == "the model" and begins else f"in the stage of '{name}'"
    )
    return FlintError(
        "FL241",
        f"nothing is computed {what}, so the stage would be empty",
        help="move the cut: each stage needs at least one module that computes with its "
        "weights or with the earlier stage's results",
    )
