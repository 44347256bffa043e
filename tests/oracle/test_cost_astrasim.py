"""The ASTRA-sim mode gives what ASTRA-sim gave, to the nanosecond.

The numbers are cycles (1 ns) of ASTRA-sim master, analytical congestion-unaware backend: ring
collectives, one chunk, one split, endpoint delay 10, local-mem-bw 3350; all ranks of the network in
one collective.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.schema import CommType
from flint.backends.cost.astrasim.ring import Collectives, Dimension, Fabric
from flint.cluster.astrasim.system import SystemFile

MIB = 1 << 20
AR, AG, RS = CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER
A2A = CommType.ALL_TO_ALL
#: A network: (members, GiB/s, ns, hops between neighbours) for each dimension, inner first.
FAST = ((8, 100, 0, 2),)
NODES = ((8, 400, 500, 2), (4, 50, 2000, 2))  # Switch, Switch
RINGS = ((4, 90, 1000, 1), (2, 25, 2500, 2))  # Ring, Switch
PAIRS = ((2, 300, 700, 1), (8, 12.5, 9000, 2))  # FullyConnected, Switch
THREE = ((4, 90, 1000, 1), (2, 60, 500, 1), (2, 25, 2500, 2))  # Ring, FullyConnected, Switch

SYSTEM = SystemFile.model_validate(
    {"peak-perf": 900, "local-mem-bw": 3350, "collective-optimization": "localBWAware"}
)


def fabric_of(network: tuple[tuple[int, float, float, int], ...]) -> Fabric:
    """A network whose neighbours in a ring are one hop apart, through a switch two."""
    topologies = tuple("Switch" if hops == 2 else "Ring" for *_, hops in network)
    dimensions = tuple(Dimension(*rest) for _, *rest in network)
    return Fabric(topologies, tuple(size for size, *_ in network), dimensions)


@pytest.mark.parametrize(
    ("network", "kind", "comm_bytes", "cycles"),
    [
        (FAST, AG, MIB, 68435), (FAST, RS, 8 * MIB, 75008), (FAST, AR, 8 * MIB, 143433), (FAST, A2A, 8 * MIB, 273710),
        (NODES, AR, 2613248, 60249), (NODES, AG, 1072128, 148915), (NODES, RS, 1504256, 26106), (NODES, A2A, 2896896, 156898),
        (NODES, AR, 4385656, 75189), (NODES, AG, 8992593, 1107870), (NODES, RS, 7911851, 55901), (NODES, A2A, 969953, 87352),
        (RINGS, AR, 2735104, 86174), (RINGS, AG, 2224128, 229005), (RINGS, RS, 121856, 9665), (RINGS, A2A, 1953792, 77806),
        (RINGS, AR, 1999280, 67323), (RINGS, AG, 7969672, 799773), (RINGS, RS, 6488057, 93706), (RINGS, A2A, 1810846, 72923),
        (PAIRS, AR, 1045504, 325853), (PAIRS, AG, 2722816, 1614476), (PAIRS, RS, 218112, 134423), (PAIRS, A2A, 658432, 677728),
        (PAIRS, AR, 4283075, 549678), (PAIRS, AG, 3736122, 2168121), (PAIRS, RS, 4788936, 294344), (PAIRS, A2A, 6633673, 2245146),
        (THREE, AR, 475136, 28968), (THREE, AG, 1559552, 308750), (THREE, RS, 1968128, 33894), (THREE, A2A, 1034240, 54950),
        (THREE, AR, 1306814, 49673), (THREE, AG, 7563104, 1464272), (THREE, RS, 2318633, 38414), (THREE, A2A, 189139, 19533),
        # less than a byte for each of the 32 members
        (NODES, AR, 1, 38230), (NODES, AG, 1, 19120), (NODES, RS, 7, 19120), (NODES, A2A, 3, 52360),
    ],
)  # fmt: skip
def test_collectives_take_what_the_simulator_took(
    network: tuple[tuple[int, float, float, int], ...], kind: CommType, comm_bytes: int, cycles: int
) -> None:
    fabric = fabric_of(network)
    ends = Collectives(fabric, SYSTEM).ends(
        kind, comm_bytes, range(fabric.world), (True,) * len(network), [0] * fabric.world
    )
    assert set(ends) == {cycles}


def test_messages_take_what_the_simulator_took() -> None:
    assert Dimension(400, 500).message_ns(MIB) == 3441
    assert Dimension(50, 2000).message_ns(MIB) == 23531


@pytest.mark.parametrize("kind", [AR, AG, RS, A2A])
@given(st.integers(1, 2**33), st.integers(0, 2**30))
def test_more_bytes_never_take_less(kind: CommType, comm_bytes: int, more: int) -> None:
    model = Collectives(fabric_of(RINGS), SYSTEM)
    few, many = (
        model.ends(kind, size, range(8), (True, True), [0] * 8)
        for size in (comm_bytes, comm_bytes + more)
    )
    assert max(few) <= max(many)
