"""Pipelines, timed from their written traces by an event simulation, against closed forms.

The simulation is ASTRA-sim's congestion-unaware analytical backend in small: of what is ready a rank
computes one node at a time and communicates one at a time, the smallest id first; a receive holds
nothing and ends when its message arrives. A collective begins when its last member has issued it.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import TraceFile, check, read
from flint.backends.chakra.schema import NodeType
from tests.auto_mesh import auto_mesh
from tests.published_schedules import BUBBLE

jax = pytest.importorskip("jax", reason="captures JAX pipelines")

WIDTH = 1024
ROWS = 512


@dataclass(frozen=True)
class Machine:
    """Operations and bytes a nanosecond, nanoseconds that each message and each collective takes.

    Matrix products of the pipelines below take 100 ns, everything else less than one: 0.
    """

    operations: float = 2 * ROWS * WIDTH * WIDTH / 100
    memory: float = 1e12
    message: int = 0
    collective: int = 0

    def duration(self, attributes: dict[str, tuple[str, Any]]) -> int:
        """ns of one computation."""
        num_ops, size = attributes["num_ops"][1], attributes["tensor_size"][1]
        return int(max(num_ops / self.operations, size / self.memory))


class Rank:
    """What one rank has done."""

    def __init__(self, trace: TraceFile) -> None:
        self.nodes = {node.id: node for node in trace.nodes}
        self.left = {node.id: len(node.data_deps) for node in trace.nodes}
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        for node in trace.nodes:
            for dep in node.data_deps:
                self.readers[dep].append(node.id)
        self.ready: dict[str, list[int]] = {"computes": [], "communicates": []}
        self.busy = dict.fromkeys(self.ready, False)
        self.worked = 0
        self.posted: dict[tuple[int, ...], int] = {}
        self.issued: Counter[str] = Counter()

    def end(self, number: int) -> list[int]:
        """A node ended: return what it makes ready."""
        freed = []
        for reader in self.readers[number]:
            self.left[reader] -= 1
            if not self.left[reader]:
                freed.append(reader)
        return freed


def slot(kind: NodeType) -> str:
    """What a node of this type occupies."""
    return "computes" if kind is NodeType.COMP else "communicates"


class Simulation:
    """All ranks of a folder of traces on a machine."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        paths = sorted(folder.glob("trace.*.et"), key=lambda p: int(p.suffixes[0][1:]))
        self.machine = machine
        self.ranks = [Rank(read(path)) for path in paths]
        self.groups = json.loads((folder / "comm_group.json").read_text())
        self.arrived: set[tuple[int, ...]] = set()
        self.gathering: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.events: list[tuple[int, int, int]] = []
        self.now = 0

    def run(self) -> int:
        """ns until the last node of the last rank ends; all of them do."""
        for number, rank in enumerate(self.ranks):
            self.free(number, [i for i, count in rank.left.items() if not count])
        self.issue()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, number, node = heapq.heappop(self.events)
                self.end(number, node)
            self.issue()
        assert not any(any(rank.left.values()) for rank in self.ranks), "some nodes never ran"
        return self.now

    def free(self, number: int, nodes: list[int]) -> None:
        rank = self.ranks[number]
        for node in nodes:
            kind = rank.nodes[node].type
            if kind is NodeType.COMM_RECV:
                rank.posted[self.message(number, node)] = node
                if self.message(number, node) in self.arrived:
                    heapq.heappush(self.events, (self.now, number, node))
            else:
                heapq.heappush(rank.ready[slot(kind)], node)

    def issue(self) -> None:
        for number, rank in enumerate(self.ranks):
            for name, queue in rank.ready.items():
                if queue and not rank.busy[name]:
                    rank.busy[name] = True
                    self.start(number, heapq.heappop(queue))

    def start(self, number: int, node: int) -> None:
        rank = self.ranks[number]
        kind, attributes = rank.nodes[node].type, rank.nodes[node].attributes
        if kind is NodeType.COMM_COLL:
            group = attributes["pg_name"][1]
            together = self.gathering[group, rank.issued[group]]
            rank.issued[group] += 1
            together.append((number, node))
            if len(together) == len(self.groups[group]):
                ends = self.now + self.machine.collective
                for member in together:
                    heapq.heappush(self.events, (ends, *member))
            return
        takes = self.machine.message
        if kind is NodeType.COMP:
            takes = self.machine.duration(attributes)
            rank.worked += takes
        heapq.heappush(self.events, (self.now + takes, number, node))

    def end(self, number: int, node: int) -> None:
        rank = self.ranks[number]
        kind = rank.nodes[node].type
        if kind is not NodeType.COMM_RECV:
            rank.busy[slot(kind)] = False
        if kind is NodeType.COMM_SEND:
            message = self.message(number, node)
            assert message not in self.arrived, "two messages are alike"
            self.arrived.add(message)
            target = self.ranks[message[1]]
            if message in target.posted:
                heapq.heappush(self.events, (self.now, message[1], target.posted[message]))
        self.free(number, rank.end(node))

    def message(self, number: int, node: int) -> tuple[int, ...]:
        """Source, target, tag and bytes of a message."""
        values = {n: v for n, (_, v) in self.ranks[number].nodes[node].attributes.items()}
        return tuple(values[f"comm_{n}"] for n in ("src", "dst", "tag", "size"))


def layer(params: Any, x: Any) -> Any:
    """One product forward and two backward, in the first stage too: `shift` needs the gradient."""
    return (x + params["shift"]) @ params["w"]


def pipeline(stages: int, microbatches: int, schedule: str, chunks: int = 1, data: int = 1) -> Any:
    """Equal stages: 100 ns forward, 200 ns backward, on each of `data` replicas."""
    import jax.numpy as jnp

    import flint

    mesh = auto_mesh((stages // chunks, data), ("pipe", "data"))

    def abstract(*shape: int, over: str | None = None) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(over))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    params = {"shift": abstract(WIDTH), "w": abstract(WIDTH, WIDTH)}
    trains = schedule != "forward"
    return flint.Pipeline(
        stages=[flint.Stage(layer, params, f"stage{s}") for s in range(stages)],
        inputs=(abstract(microbatches * data * ROWS, WIDTH, over="data"),),
        loss=jnp.mean if trains else None,
        microbatches=microbatches,
        schedule=schedule,
        chunks=chunks,
    )


FORWARD = 100
BACKWARD = 200


Simulate = Callable[..., Simulation]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulate:
    """Capture, write and check a pipeline (each once), and run it with a time for messages.

    All have the same bodies of stages, and XLA divides each body once.
    """
    import flint
    from flint.passes.partition import xla

    asked, answers = xla._asked, {}

    def asked_once(task: str, options: dict[str, Any], payload: bytes) -> Any:
        key = (task, *options.items(), payload)
        if key not in answers:
            answers[key] = asked(task, options, payload)
        return answers[key]

    @cache
    def written(ranks: int, microbatches: int, schedule: str, chunks: int, data: int) -> Path:
        folder = tmp_path_factory.mktemp("pipeline") / "out"
        what = pipeline(ranks * chunks, microbatches, schedule, chunks, data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(xla, "_asked", asked_once)
            flint.trace(what, {"pipe": ranks, "data": data}).save(folder)
        report = check(folder)
        assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
        return folder

    def simulate(
        ranks: int, microbatches: int, schedule: str, chunks: int = 1, data: int = 1, **machine: int
    ) -> Simulation:
        folder = written(ranks, microbatches, schedule, chunks, data)
        run = Simulation(folder, replace(Machine(), **machine))  # type: ignore[arg-type]
        run.run()
        return run

    return simulate


def in_two_stages(schedule: str, microbatches: int, message: int) -> int:
    """ns of M microbatches in two equal stages, forward F, backward B, a message H at most F.

    GPipe waits for one message on the way there and one on the way back: (M + 1) (F + B) + 2 H.
    1F1B has two microbatches on the way, and each pair of them waits for both: 2 H a pair. ZB-H1
    sends when half of the backward pass is done; the last gradient of weights fills what is then
    left. Interleaved, a microbatch crosses three boundaries between the chunks of two ranks, there
    and back, and the others have time to follow.
    """
    m, slot = microbatches, FORWARD + BACKWARD
    pairs = -(-m // 2)
    if schedule == "forward":
        return (m + 1) * FORWARD + message
    if schedule == "zb-h1":
        return m * slot + FORWARD + 2 * message * pairs
    if schedule == "interleaved-1f1b":
        return (2 * m + 1) * slot + 6 * message
    return (m + 1) * slot + 2 * message * (1 if schedule == "gpipe" else pairs)


@pytest.mark.parametrize("message", [0, 7, 50])
@pytest.mark.parametrize("microbatches", [4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "forward", "interleaved-1f1b"])
def test_two_equal_stages_take_the_closed_form(
    schedule: str, microbatches: int, message: int, simulated: Simulate
) -> None:
    chunks = 2 if schedule.startswith("interleaved") else 1
    run = simulated(2, microbatches, schedule, chunks, message=message)
    assert run.now == in_two_stages(schedule, microbatches, message)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 5])
def test_any_number_of_microbatches(schedule: str, microbatches: int, simulated: Simulate) -> None:
    run = simulated(2, microbatches, schedule, message=100)
    assert run.now == in_two_stages(schedule, microbatches, 100)


def test_reductions_over_data_hold_no_message_back(simulated: Simulate) -> None:
    """The last stage sends its last gradient before it reduces any, though one came before it.

    Each mean loss is reduced over data. In the first stage two gradients are, the first while the
    product of the second runs, and then the loss over the stages.
    """
    run = simulated(2, 4, "gpipe", data=2, message=7, collective=150)
    assert run.now == in_two_stages("gpipe", 4, 7) + 4 * 150 + (150 - 100 + 150 + 150)


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("zb-h1", 1),
        ("zb-v", 2),
        ("dualpipev", 2),
        ("forward", 1),
        ("interleaved-1f1b", 2),
    ],
)
@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 4), (4, 12)])
def test_ranks_wait_as_the_schedule_says(
    schedule: str, chunks: int, ranks: int, microbatches: int, simulated: Simulate
) -> None:
    """Messages take no time here: what is left is the bubble of the schedule."""
    if schedule == "dualpipev":
        microbatches = max(microbatches, 2 * ranks)
    run = simulated(ranks, microbatches, schedule, chunks)
    expected = BUBBLE[schedule](ranks, microbatches, chunks)
    for rank in run.ranks:
        assert Fraction(run.now - rank.worked, run.now) == expected
