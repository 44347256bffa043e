"""The algorithms of collectives: each file states one, and together they can run everything."""

import pkgutil
from importlib import import_module

import pytest

from flint.backends.cost.collectives import algorithms as folder
from flint.backends.cost.collectives.algorithm import (
    NCCL,
    CollectiveCall,
    Task,
    across_tiers,
    algorithms,
)
from flint.backends.cost.collectives.choose import plans, speed_of, speeds_of
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster, NetworkKind
from flint.cluster.tables import OF_ALGORITHMS
from flint.ir.op_class import Collective

MIB = 1 << 20


def task(kind: NetworkKind, collective: Collective, size: int = 8) -> Task:
    """Eight members of a tier of a kind."""
    network = Cluster.load("h100-dgx").network[0].model_copy(update={"kind": kind})
    return Task(collective, MIB, Span(0, size), network, 8, speed_of(network), NCCL, True)


def test_every_file_states_algorithms_in_the_order_of_the_files() -> None:
    stated = []
    for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
        here = import_module(f"{folder.__name__}.{module}").ALGORITHMS
        assert here, module
        stated += [a.name for a in here]
    assert [a.name for a in algorithms()] == [n for n in stated if n != "flat ring"]
    assert [a.name for a in across_tiers()] == ["flat ring"]
    assert len(set(stated)) == len(stated)


@pytest.mark.parametrize("kind", list(NetworkKind))
@pytest.mark.parametrize("collective", list(Collective))
def test_every_collective_runs_on_every_kind_of_tier(
    kind: NetworkKind, collective: Collective
) -> None:
    one = task(kind, collective)
    ways = [a for a in algorithms() if a.runs(one)]
    assert ways
    for way in ways:
        schedule = way.schedule(one)
        assert schedule.steps > 0
        assert schedule.wire_bytes > 0
        assert schedule.links > 0


def test_an_algorithm_of_a_library_is_not_taken_from_another() -> None:
    cluster = Cluster.load("h100-dgx")
    gather = CollectiveCall(Collective.ALL_GATHER, 64, (Span(1, 64),))
    ways = {leg.schedule.algorithm for (leg,) in plans(gather, cluster, speeds_of(cluster))}
    assert ways == {"PAT", "ring"}
    tpu = Cluster.load("v5e")
    (only,) = plans(gather, tpu, speeds_of(tpu))
    assert [leg.schedule.algorithm for leg in only] == ["ring"]


def test_what_a_file_says_of_a_declared_constant_is_what_the_algorithm_reads() -> None:
    network = Cluster.load("h100-dgx").network[0]
    assert set(speed_of(network).declared) == set(OF_ALGORITHMS)
    assert speed_of(network).declared["nvls_from"] == network.constants["nvls_from"].value
    assumed = speed_of(network.model_copy(update={"constants": {}})).declared
    assert assumed == {name: c.assumed for name, c in OF_ALGORITHMS.items()}
    assert all(c.allows(c.assumed) for c in OF_ALGORITHMS.values())


def test_there_is_no_reduction_in_a_switch_below_its_least_members() -> None:
    (in_switch,) = (a for a in algorithms() if a.name == "in-switch")
    runs = [in_switch.runs(task(NetworkKind.SWITCH, Collective.ALL_REDUCE, n)) for n in (4, 5, 8)]
    assert runs == [False, True, True]
    assert not in_switch.runs(task(NetworkKind.MESH, Collective.ALL_REDUCE))
