"""Loads of the links of small tori, against walking every message link by link."""

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.cost.collectives.algorithms.torus import Extent, torus
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.network.torus import load_of
from flint.cluster.models import Cluster
from flint.ir.mesh import AxisRef, Mesh, Route
from flint.ir.program import Collective

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def _walk(source, target, shape, rings):
    """Hops, and the directed links that a message passes, one dimension after the other."""
    here, passed = list(source), []
    for d, size in enumerate(shape):
        while here[d] != target[d]:
            up = (target[d] - here[d]) % size
            step = 1 if (up <= size - up if rings[d] else target[d] > here[d]) else -1
            if rings[d] and passed and passed[-1][1] == d:
                step = passed[-1][2]  # half way round: no turning back
            passed.append((tuple(here), d, step))
            here[d] = (here[d] + step) % size if rings[d] else here[d] + step
    return passed


def _counted(messages, shape, rings):
    links, hops = Counter(), 0
    for torus_number, source, target in messages:
        passed = _walk(source, target, shape, rings)
        links.update((torus_number, *link) for link in passed)
        hops = max(hops, len(passed))
    return hops, max(links.values(), default=0)


@given(st.data(), shapes)
def test_loads_are_those_of_messages_that_go_link_by_link(data, shape):
    rings = [data.draw(st.booleans()) for _ in shape]
    chips = list(np.ndindex(*shape))
    chip, number = st.sampled_from(chips), st.integers(0, 1)
    messages = data.draw(st.lists(st.tuples(number, chip, chip), min_size=1, max_size=30))
    places = [np.array([m[i] for m in messages], dtype=np.int64) for i in (1, 2)]
    tori = np.array([m[0] for m in messages], dtype=np.int64)
    assert load_of(*places, shape, rings, tori) == _counted(messages, shape, rings)


@settings(max_examples=60)
@given(st.data())
def test_routes_of_placed_meshes_load_links_as_counted(data):
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=3))
    name = data.draw(st.sampled_from(["v5e", "v5p"]))
    mesh = Mesh(tuple("abc"[: len(sizes)]), tuple(sizes))
    if mesh.size > 256:
        return
    placed = NetworkPlacement(mesh, Cluster.load(name))
    axis = data.draw(st.sampled_from(mesh.names))
    offset = data.draw(st.integers(1, max(1, mesh.shape[axis] - 1)))
    route = Route((AxisRef(axis),), offset, wrap=data.draw(st.booleans()))
    spans = [s for s in placed.spans_of_route(route) if s.tier == 0]
    if not spans:
        return
    place = np.zeros((mesh.size, len(placed.shapes[0])), dtype=np.int64)
    pod = np.zeros(mesh.size, dtype=np.int64)
    for part in placed.parts:
        at = mesh.names.index(part.axis)
        coordinate = np.unravel_index(np.arange(mesh.size), mesh.sizes)[at]
        digit = coordinate // (mesh.sizes[at] // (part.pre_size * part.size)) % part.size
        if part.tier:
            pod = pod * part.size + digit
        else:
            place[:, part.line.dimension] += digit * part.line.stride
    targets = route.targets(mesh)
    messages = [
        (pod[i], tuple(place[i]), tuple(place[t]))
        for i, t in enumerate(targets.tolist())
        if t >= 0 and t != i and pod[i] == pod[t]
    ]
    network, shape = placed.cluster.network[0], placed.shapes[0]
    whole = [s % network.torus_wrap_multiple == 0 for s in shape]
    rings = [all(whole)] * len(shape) if network.torus_wraps_together else whole
    assert (spans[0].stride, spans[0].sharing) == _counted(messages, shape, rings)


lines = st.tuples(st.sampled_from([2, 3, 4]), st.sampled_from([1, 2, 3, 4]))


@given(st.lists(lines, min_size=1, max_size=3), st.integers(1, 1000))
def test_a_gather_takes_between_its_best_and_its_worst_order_of_dimensions(sizes, comm_bytes):
    """One dimension after the other, the fullest link of each counted, is never faster."""
    extents = tuple(Extent(size, False, stride) for size, stride in sizes)
    schedule = torus(Collective.ALL_GATHER, comm_bytes, extents)
    one_by_one, ready = 0, 1
    for extent in sorted(extents, key=lambda e: -e.stride):
        ways = np.zeros(extent.size * extent.stride)
        for group in range(extent.stride):  # interleaved groups on a line of chips
            for member in range(extent.size - 1):  # to the last member, from all before it
                first = group + member * extent.stride
                ways[first : first + extent.stride] += (member + 1) * ready
        one_by_one += ways.max() * comm_bytes
        ready *= extent.size
    took = schedule.wire_bytes / schedule.links
    assert took <= one_by_one * (1 + 1e-9)
    size = math.prod(e.size for e in extents)
    assert took >= (size - 1) * comm_bytes / sum(e.share for e in extents) * (1 - 1e-9)


@given(st.lists(lines, min_size=1, max_size=3), st.integers(0, 2), st.integers(1, 4))
def test_more_interleaved_groups_are_never_faster(sizes, which, more):
    extents = [Extent(size, False, stride) for size, stride in sizes]
    crowded = list(extents)
    at = which % len(extents)
    crowded[at] = Extent(extents[at].size, False, extents[at].stride * more)
    for collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BROADCAST):
        alone = torus(collective, 600, tuple(extents))
        shared = torus(collective, 600, tuple(crowded))
        slower = shared.wire_bytes * alone.links, alone.wire_bytes * shared.links
        assert slower[0] >= slower[1] * (1 - 1e-9)
