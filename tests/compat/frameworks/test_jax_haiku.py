"""Haiku's ResNet-50 and DeepMind's jraph."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
jax = pytest.importorskip("jax")

import jax.numpy as jnp

import flint
from tests.compat.frameworks.jax_totals import DATA, collectives, matmul_flops, replicated, shaped

F32 = 4
#: Images of one device, of 128 x 128 pixels.
IMAGES, SIZE = 2, 128


def convolutions(size: int) -> int:
    """FLOPs of ResNet-50's convolutions for one image, counted by hand (strides in the 3x3)."""
    size //= 2
    total, channels = 2 * size**2 * 64 * 3 * 49, 64
    size //= 2
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            out = size // step
            total += 2 * size**2 * channels * width  # 1x1
            total += 2 * out**2 * width * width * 9
            total += 2 * out**2 * width * 4 * width
            if block == 0:
                total += 2 * out**2 * channels * 4 * width
            channels, size = 4 * width, out
    return total


def test_resnet_50() -> None:
    hk = pytest.importorskip("haiku")

    def forward(images: Any, is_training: bool) -> Any:
        return hk.nets.ResNet50(1000, resnet_v2=False)(images, is_training=is_training)

    net = hk.transform_with_state(forward)
    images = shaped((8 * IMAGES, SIZE, SIZE, 3), "data", mesh=DATA)
    made = jax.eval_shape(lambda k, x: net.init(k, x, True), jax.random.key(0), images)
    parameters, state = replicated(made, DATA)

    def infer(parameters: Any, state: Any, images: Any) -> Any:
        return net.apply(parameters, state, None, images, False)[0]

    trace = flint.trace(jax.jit(infer), DATA, parameters, state, images)
    assert matmul_flops(trace) == IMAGES * (convolutions(SIZE) + 2 * 2048 * 1000)
    assert collectives(trace) == {}

    def train(parameters: Any, state: Any, images: Any) -> Any:
        def loss(p: Any) -> Any:
            logits, new = net.apply(p, state, None, images, True)
            return jnp.square(logits).mean(), new

        gradients, new = jax.grad(loss, has_aux=True)(parameters)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), new

    sent = collectives(flint.trace(jax.jit(train), DATA, parameters, state, images))
    weights = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    # gradients of every weight, and sums over the batch in the norms, forward and backward
    assert set(sent) == {("all_reduce", "data")}
    assert F32 * weights < sent["all_reduce", "data"] < F32 * (weights + 10 * 53_120)


NODES, EDGES, WIDTH = 1024, 4096, 64


def test_a_graph_network() -> None:
    jraph = pytest.importorskip("jraph")
    weights = {
        name: shaped((k * WIDTH, WIDTH), mesh=DATA) for name, k in (("edge", 3), ("node", 3))
    }

    def step(weights: Any, nodes: Any, edges: Any, senders: Any, receivers: Any) -> Any:
        def edge(e: Any, s: Any, r: Any, _: Any) -> Any:
            return jax.nn.relu(jnp.concatenate([e, s, r], -1) @ weights["edge"])

        def node(n: Any, s: Any, r: Any, _: Any) -> Any:
            return jax.nn.relu(jnp.concatenate([n, s, r], -1) @ weights["node"])

        graph = jraph.GraphsTuple(
            nodes, edges, receivers, senders, None, jnp.array([NODES]), jnp.array([EDGES])
        )
        return jraph.GraphNetwork(update_edge_fn=edge, update_node_fn=node)(graph).nodes

    places = shaped((EDGES,), "data", dtype=jnp.int32, mesh=DATA)
    trace = flint.trace(
        step,
        DATA,
        weights,
        shaped((NODES, WIDTH), mesh=DATA),
        shaped((EDGES, WIDTH), "data", mesh=DATA),
        *(places, places),
    )
    # edges are split over data; what they add to nodes is summed, and nodes are updated everywhere
    # or in parts: at least a part, at most all of them
    products = matmul_flops(trace)
    edges = 2 * EDGES // 8 * 3 * WIDTH * WIDTH
    nodes = 2 * NODES * 3 * WIDTH * WIDTH
    assert products in (edges + nodes, edges + nodes // 8)
    assert {kind for kind, _ in collectives(trace)} <= {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
    }
    assert sum(collectives(trace).values()) >= 2 * F32 * NODES * WIDTH
