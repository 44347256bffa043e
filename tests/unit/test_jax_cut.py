"""Whole JAX models cut into stages compute what they did, and so do their gradients."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from flint.frontends.jax_stages.cut import CutModel, cut_model
from flint.mesh import Mesh
from flint.pipeline import Pipeline

MESH = Mesh.parse("pipe=2,data=2,model=2")
ABSTRACT = AbstractMesh(MESH.sizes, MESH.names)
BATCH, SEQUENCE, DIM, HIDDEN, VOCAB, LAYERS = 4, 6, 8, 16, 32, 6


def struct(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(ABSTRACT, P(*spec)))


TOKENS = struct((BATCH * 2, SEQUENCE), "data", None, dtype=jnp.int32)
LAYER = {
    "qkv": struct((DIM, 3, DIM), None, None, "model"),
    "out": struct((DIM, DIM), "model", None),
    "up": struct((DIM, HIDDEN), None, "model"),
    "down": struct((HIDDEN, DIM), "model", None),
}


def stacked(count: int = LAYERS) -> Any:
    return jax.tree.map(lambda w: struct((count, *w.shape), None, *w.sharding.spec), LAYER)


def weights(layers: Any, **more: Any) -> Any:
    table = struct((VOCAB, DIM), "model", None)
    return {"embed": table, "layers": layers, "head": struct((DIM, VOCAB), None, "model"), **more}


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5)


def layer(x: Any, p: Any, mask: Any, position: Any) -> Any:
    with jax.named_scope("attention"):
        q, k, v = jnp.moveaxis(jnp.einsum("bsd,dnh->bsnh", norm(x) + position, p["qkv"]), 2, 0)
        scores = jnp.where(mask, jnp.einsum("bsh,bth->bst", q, k), -1e9)
        x = x + jnp.einsum("bst,bth->bsh", jax.nn.softmax(scores), v) @ p["out"]
    with jax.named_scope("mlp"):
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
    return jax.lax.with_sharding_constraint(x, NamedSharding(ABSTRACT, P("data", None, None)))


def shared(tokens: Any) -> tuple[Any, Any]:
    """A causal mask and a position table: they depend on no parameter."""
    length = tokens.shape[1]
    mask = jnp.tril(jnp.ones((length, length), bool)) & (tokens >= 0)[:, None, :]
    frequency = jnp.einsum("i,j->ij", jnp.arange(length, dtype=jnp.float32), 0.5 ** jnp.arange(DIM))
    return mask, jnp.sin(frequency)


def model(params: Any, tokens: Any, *, run: Any) -> Any:
    with jax.named_scope("embed"):
        x = params["embed"][tokens]
        mask, position = shared(tokens)
    with jax.named_scope("layers"):
        x = run(x, params["layers"], mask, position)
    with jax.named_scope("head"):
        head = params["head"] if "head" in params else params["embed"].T
        return norm(x) @ head


def loss(logits: Any, targets: Any) -> Any:
    with jax.named_scope("loss"):
        picked = jax.nn.one_hot(targets, VOCAB)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * picked, -1))


def scan(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    return jax.lax.scan(lambda x, p: (layer(x, p, mask, position), None), x, layers)[0]


def scan_of_remat(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    block = jax.checkpoint(layer)
    return jax.lax.scan(lambda x, p: (block(x, p, mask, position), None), x, layers)[0]


def scan_that_carries_the_mask(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    def body(carry: Any, p: Any) -> Any:
        x, mask = carry
        return (layer(x, p, mask, position), mask), None

    return jax.lax.scan(body, (x, mask), layers)[0][0]


def scan_over_casts(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    layers = jax.tree.map(lambda w: w.astype(jnp.float16).astype(jnp.float32), layers)
    layers |= {"down": jnp.swapaxes(layers["down"], 0, 0) * 2.0}
    numbered = (layers, jnp.arange(LAYERS, dtype=jnp.float32))

    def body(x: Any, given: Any) -> Any:
        p, number = given
        return layer(x, p, mask, position + number), None

    return jax.lax.scan(body, x, numbered)[0]


def jitted_list(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    block = jax.jit(layer)
    for p in layers:
        x = block(x, p, mask, position)
    return x


def remat_list(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for p in layers:
        x = jax.checkpoint(layer)(x, p, mask, position)
    return x


def scoped_list(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for i, p in enumerate(layers):
        with jax.named_scope(f"{i}"):
            x = layer(x, p, mask, position)
    return x


def underscored_list(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for i, p in enumerate(layers):
        with jax.named_scope(f"layers_{i}"):
            x = layer(x, p, mask, position)
    return x


def plain_list(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for p in layers:
        x = layer(x, p, mask, position)
    return x


def jitted_whole(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    return jax.jit(scan)(x, layers, mask, position)


SCANS = [scan, scan_of_remat, scan_that_carries_the_mask, scan_over_casts, jitted_whole]
LISTS = [jitted_list, remat_list, scoped_list, underscored_list, plain_list]


def pipeline(run: Any, **changes: Any) -> Pipeline:
    layers = stacked() if run in SCANS else [LAYER] * LAYERS
    given = {
        "model": functools.partial(model, run=run),
        "params": weights(layers),
        "inputs": (TOKENS,),
        "targets": (TOKENS,),
        "loss": loss,
        "microbatches": 2,
        "cut": "layers",
    }
    return Pipeline(**(given | changes))


# numbers --------------------------------------------------------------------------------------


def values(tree: Any, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)

    def one(s: Any) -> Any:
        if jnp.issubdtype(s.dtype, jnp.integer):
            return jnp.asarray(random.integers(0, VOCAB, s.shape), s.dtype)
        return jnp.asarray(random.normal(size=s.shape) * 0.3, s.dtype)

    return jax.tree.map(one, tree)


def rows(stage: Any, name: str, whole: Any) -> slice:
    """Which layers of a stacked parameter a stage holds, by what its label says."""
    if stage.params[name].shape == whole.shape:
        return slice(None)
    words = stage.label.split("layers ")[1].split(",")[0].split("-")
    return slice(int(words[0]), int(words[-1]) + 1)


def compiled(function: Any) -> Any:
    """Jitted without optimisations: compiling takes the time of these tests."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def check_numbers(given: Pipeline, cut: CutModel) -> None:
    """Chained stages, and the chained vjp of them, against the whole model and its gradient."""
    params = values(given.params)
    names = [
        "params" + jax.tree_util.keystr(k)
        for k, _ in jax.tree_util.tree_flatten_with_path(given.params)[0]
    ]
    flat = dict(zip(names, jax.tree.leaves(params), strict=True))
    inputs = [values(jax.ShapeDtypeStruct((BATCH, *s.shape[1:]), s.dtype), 1) for s in given.inputs]
    targets = [
        values(jax.ShapeDtypeStruct((BATCH, *t.shape[1:]), t.dtype), 2) for t in given.targets
    ]

    def whole(params: Any) -> Any:
        found = given.model(params, *inputs)
        return given.loss(found, *targets) if given.loss else found

    batch = dict(zip(all_batch_names(cut), [*inputs, *targets], strict=False))
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        expected, gradients = compiled(jax.value_and_grad(whole))(params)
        result, found = compiled(functools.partial(chained, cut))(flat, batch)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    for name, gradient in zip(names, jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


def all_batch_names(cut: CutModel) -> list[str]:
    read = {n for s in cut.stages for n in s.batch}
    return [n for n in ("tokens", "source", "targets") if n in read]


def chained(cut: CutModel, flat: Any, batch: Any) -> Any:
    crossing, backward = (), []
    for stage in cut.stages:
        held = {n: flat[n][rows(stage, n, flat[n])] for n in stage.params}
        own = {n: batch[n] for n in stage.batch}
        assert [v.shape for v in crossing] == [s.shape for s in stage.inputs]
        crossing, vjp = jax.vjp(lambda p, x, s=stage, b=own: s.fn(p, b, x), held, crossing)
        backward.append(vjp)
    (result,) = crossing
    found = {n: jnp.zeros_like(v) for n, v in flat.items()}
    cotangent = (jnp.ones_like(result),)
    for stage, vjp in reversed(list(zip(cut.stages, backward, strict=True))):
        gradient, cotangent = vjp(cotangent)
        for name, value in gradient.items():
            found[name] = found[name].at[rows(stage, name, flat[name])].add(value)
    return result, found


@pytest.mark.parametrize("run", SCANS + LISTS)
def test_stages_compute_what_the_model_does(run: Any) -> None:
    given = pipeline(run)
    cut = cut_model(given, MESH, 3)
    assert [s.label for s in cut.stages] == [
        "embed, layers 0-1",
        "layers 2-3",
        "layers 4-5, head, loss",
    ]
    assert [len(s.inputs) for s in cut.stages] == [0, 1, 1]
    assert cut.tied == ()
    check_numbers(given, cut)


def test_a_stage_holds_only_its_own_parameters_and_reads_only_its_batch() -> None:
    first, second, last = cut_model(pipeline(scan), MESH, 3).stages
    assert list(first.params) == ["params['embed']"] + [
        f"params['layers'][{n!r}]" for n in sorted(LAYER)
    ]
    assert next(iter(last.params)) == "params['head']"
    up = second.params["params['layers']['up']"]
    assert up.shape == (2, DIM, HIDDEN)
    assert up.sharding.spec == P(None, None, "model")
    assert [list(s.batch) for s in (first, second, last)] == [
        ["tokens"],
        ["tokens"],  # for the mask
        ["tokens", "targets"],
    ]
    assert second.batch["tokens"].shape == (BATCH, SEQUENCE)
    assert [s.is_last for s in (first, second, last)] == [False, False, True]
    assert second.inputs[0].sharding.spec == P("data")
    assert last.outputs[0].shape == ()
