"""Programs whose collectives are ready in either order, ranks that are late, and traces that are broken."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from flint.backends.chakra import check, write
from flint.backends.chakra.reading.reader import records
from flint.backends.chakra.schema import NodeType, messages
from flint.backends.cost.astrasim.disturbance import Disturbance
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.astrasim.step import NeverEndsError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Program
from flint.ir.workload import Workload
from tests.chakra_traces import trace_bytes
from tests.program_rows import ProgramBuilder

MIB = 1 << 20
KINDS = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)


def tangled(seed: int, rows: int = 24) -> Program:
    """Kernels and collectives over either axis or both that wait for little, and shifts of ranks."""
    rng = random.Random(seed)
    b = ProgramBuilder(
        Mesh.parse(rng.choice(("data=2,model=2", "data=4,model=2", "data=2,model=3")))
    )
    axes = (("data",), ("model",), ("data", "model"))
    for row in range(rows):
        deps = sorted({rng.randrange(row) for _ in range(rng.choice((0, 1, 1, 2)))}) if row else []
        what = rng.random()
        if what < 0.5:
            b.add(
                "dot", deps=deps, flops=rng.randint(1, 40) * 10**10, result_bytes=rng.randint(1, 9)
            )
        elif what < 0.92:
            b.add(
                "collective",
                Kind.COLLECTIVE,
                deps=deps,
                collective=rng.choice(KINDS),
                group=Group(tuple(map(AxisRef, rng.choice(axes)))),
                comm_bytes=rng.randint(1, 40) * MIB,
            )
        else:
            route = Route((AxisRef(rng.choice(("data", "model"))),), 1, wrap=rng.random() < 0.5)
            b.add(
                "permute",
                Kind.COLLECTIVE,
                deps=deps,
                collective=Collective.PERMUTE,
                route=route,
                comm_bytes=rng.randint(1, 9) * MIB,
            )
    return b.build()


def disturbances(seed: int, world: int, count: int) -> list[Disturbance]:
    """One rank 2 % to 100 % slower, or all that vary by up to 20 %."""
    rng = random.Random(seed)
    found = []
    for n in range(count):
        late = ((rng.randrange(world), rng.choice((1.02, 1.1, 1.5, 2.0))),)
        found.append(Disturbance(late) if n % 2 == 0 else Disturbance(jitter=0.2, seed=seed + n))
    return found


def hangs(folder: Path, disturbance: Disturbance) -> bool:
    """Whether ranks wait for ever by the rules of ASTRA-sim."""
    try:
        simulate_traces(folder, folder / "network.yml", disturbance=disturbance)
    except NeverEndsError:
        return True
    return False


def late_hangs(program: Program, folder: Path, seed: int, count: int) -> int:
    """Of the written traces of a program, which must be proved, the number of runs that hang."""
    write(Workload.single(program), folder)
    report = check(folder)
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
    tried = [Disturbance(), *disturbances(seed, program.mesh.size, count)]
    return sum(hangs(folder, d) for d in tried)


def broken_outcome(program: Program, folder: Path, seed: int, count: int) -> str:
    """What `check` says of the traces with a fault on one rank. Fails where that is not true."""
    write(Workload.single(program), folder)
    (folder / "manifest.json").unlink()  # whose digests tell every change
    break_one(folder, random.Random(seed))
    report = check(folder)
    if not report.ok:
        return "found"
    tried = disturbances(seed, program.mesh.size, count) if report.proved == "any-times" else []
    assert report.deadlock_examined and report.proved != "nothing", report.doubt
    for each in (Disturbance(), *tried):
        assert not hangs(folder, each), (seed, str(each), report)
    return report.proved


def break_one(folder: Path, rng: random.Random) -> None:
    """Exchange two neighbouring collectives, drop one or delay one on one rank of a folder."""
    path = rng.choice(sorted(folder.glob("*.et")))
    data = path.read_bytes()
    spans = list(records(data, path.name))[1:]
    nodes = [messages().Node.FromString(data[a:b]) for a, b in spans]
    places = [i for i, n in enumerate(nodes) if n.type == NodeType.COMM_COLL]
    if len(places) < 2:
        return
    at = rng.randrange(len(places) - 1)
    rng.choice((_exchange, _drop, _delay))(nodes, places[at], places[at + 1], rng)
    path.write_bytes(trace_bytes([n for n in nodes if n is not None]))


def _exchange(nodes: list[Any], one: int, other: int, rng: random.Random) -> None:
    a, b = nodes[one], nodes[other]
    said = [(n.name, [type(v).FromString(v.SerializeToString()) for v in n.attr]) for n in (a, b)]
    for node, (name, attributes) in zip((b, a), said, strict=True):
        node.name = name
        del node.attr[:]
        node.attr.extend(attributes)


def _drop(nodes: list[Any], one: int, other: int, rng: random.Random) -> None:
    gone = nodes[one]
    for node in nodes:
        if gone.id in node.data_deps:
            deps = {*node.data_deps, *gone.data_deps} - {gone.id}
            del node.data_deps[:]
            node.data_deps.extend(sorted(deps))
    nodes[one] = None


def _delay(nodes: list[Any], one: int, other: int, rng: random.Random) -> None:
    """It waits for another node that does not wait for it; what ordered it before is let go."""
    late = nodes[one]
    after = {late.id}
    for _ in nodes:
        after |= {n.id for n in nodes if after.intersection(n.data_deps)}
    free = [n.id for n in nodes if n.id not in after]
    if rng.random() < 0.5:
        del late.data_deps[:]
    if free:
        late.data_deps.append(rng.choice(free))
        deps = sorted(set(late.data_deps))
        del late.data_deps[:]
        late.data_deps.extend(deps)


def count_outcomes(seeds: range, folder: Path, count: int) -> Counter[str]:
    """What `check` said of so many broken traces."""
    return Counter(broken_outcome(tangled(seed), folder / str(seed), seed, count) for seed in seeds)
