"""Whole JAX models cut into stages compute what they did, and so do their gradients."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.layers import _holds
from flint.frontends.jax_stages.cut.program import CutModel, cut_model
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline
from tests.auto_mesh import auto_mesh

MESH = Mesh.parse("pipe=2,data=2,model=2")
ABSTRACT = auto_mesh(MESH.sizes, MESH.names)
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


def indexed_stack(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for i in range(LAYERS):
        x = layer(x, jax.tree.map(lambda w, i=i: w[i], layers), mask, position)
    return x


SCANS = [
    indexed_stack,
    scan,
    scan_of_remat,
    scan_that_carries_the_mask,
    scan_over_casts,
    jitted_whole,
]
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


#: The others differ from these in how layers are found, not in what becomes of them.
COMPUTED = [
    indexed_stack,
    scan_of_remat,
    scan_that_carries_the_mask,
    scan_over_casts,
    jitted_list,
    plain_list,
]


@pytest.mark.parametrize("run", SCANS + LISTS)
def test_layers_are_found_however_they_are_written(run: Any) -> None:
    given = pipeline(run)
    cut = cut_model(given, MESH, 3)
    assert [s.label for s in cut.stages] == [
        "embed, layers 0-1",
        "layers 2-3",
        "layers 4-5, head, loss",
    ]
    assert [len(s.inputs) for s in cut.stages] == [0, 1, 1]
    assert cut.tied == ()


@pytest.mark.long  # test_what_several_stages_read... computes the numbers of a scan
@pytest.mark.parametrize("run", COMPUTED)
def test_stages_compute_what_the_model_does(run: Any) -> None:
    given = pipeline(run)
    check_numbers(given, cut_model(given, MESH, 3))


def test_equal_stages_have_equal_keys() -> None:
    for run in (scan, jitted_list, plain_list):
        keys = [s.key for s in cut_model(pipeline(run), MESH, 6).stages]
        assert len(set(keys[1:5])) == 1
        assert len(set(keys)) == 3
    uneven = cut_model(pipeline(scan, cut="layers:1,3"), MESH, 3).stages
    assert len({s.key for s in uneven}) == 3


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x: Any, scale: float) -> Any:
    return x * 2.0


scaled.defvjp(lambda x, scale: (x * 2.0, None), lambda scale, _, g: (g * scale,))


def custom_list(scales: Any, x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for p, scale in zip(layers, scales, strict=True):
        with jax.named_scope("block"):
            x = layer(scaled(jax.nn.relu(x), scale), p, mask, position)
    return x


def test_rules_of_gradients_tell_stages_apart() -> None:
    equal = functools.partial(custom_list, [2.0] * LAYERS)
    assert len({s.key for s in cut_model(pipeline(equal), MESH, 6).stages}) == 3
    other = functools.partial(custom_list, [2.0, 2.0, 3.0, 2.0, 2.0, 2.0])
    assert len({s.key for s in cut_model(pipeline(other), MESH, 6).stages}) == 4


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


# what several stages read ---------------------------------------------------------------------


def test_what_several_stages_read_is_tied_and_gets_the_gradients_of_all() -> None:
    """An embedding that is the head as well, and a parameter that all layers read."""

    def biased(x: Any, layers: Any, mask: Any, position: Any) -> Any:
        bias = jnp.tanh(layers["bias"]) @ jnp.ones((DIM, DIM))  # from parameters alone
        return scan(x, layers["stack"], mask, position + bias)

    layers = {"stack": stacked(), "bias": struct((SEQUENCE, DIM))}
    tied = weights(layers)
    del tied["head"]
    given = pipeline(biased, params=tied)
    cut = cut_model(given, MESH, 3)
    name, table = "params['layers']['bias']", "params['embed']"
    pairs = (((0, name), (1, name)), ((0, name), (2, name)), ((0, table), (2, table)))
    assert sorted(cut.tied) == sorted(pairs)
    check_numbers(given, cut)


def test_a_jitted_function_may_return_activations_and_a_mask() -> None:
    @jax.jit
    def embed(table: Any, tokens: Any) -> Any:
        return table[tokens], *shared(tokens)

    def embedded(params: Any, tokens: Any) -> Any:
        x, mask, position = embed(params["embed"], tokens)
        return jax.jit(scan)(x, params["layers"], mask, position) @ params["head"]

    stages = cut_model(pipeline(scan, model=embedded), MESH, 3).stages
    assert [s.shape for s in stages[1].inputs] == [(BATCH, SEQUENCE, DIM)]
    assert list(stages[1].batch) == ["tokens"]


def encoder_decoder(params: Any, source: Any, tokens: Any) -> Any:
    mask = jnp.ones((SEQUENCE, SEQUENCE), bool)
    with jax.named_scope("encoder"):
        encoded = params["embed"][source]
        for i, p in enumerate(params["encoder"]):
            with jax.named_scope(f"{i}"):
                encoded = layer(encoded, p, mask, 0.0)
    with jax.named_scope("decoder"):
        y = params["embed"][tokens]
        for i, p in enumerate(params["decoder"]):
            with jax.named_scope(f"{i}"):
                y = layer(y + encoded @ p["cross"], p["own"], jnp.tril(mask), 0.0)
    with jax.named_scope("head"):
        return norm(y) @ params["head"]


DECODER_LAYER = {"own": LAYER, "cross": struct((DIM, DIM))}
TRANSLATION = Pipeline(
    model=encoder_decoder,
    params={
        "embed": struct((VOCAB, DIM)),
        "encoder": [LAYER] * 3,
        "decoder": [DECODER_LAYER] * 2,
        "head": struct((DIM, VOCAB)),
    },
    inputs=(TOKENS, TOKENS),
    targets=(TOKENS,),
    loss=loss,
    microbatches=2,
    crossing=2,
)


def test_an_encoder_and_a_decoder_are_cut_by_the_names_of_scopes() -> None:
    boundary = (P("data", "model"), P("data"))  # of the encoder's output, and of the decoder's
    given = dataclasses.replace(TRANSLATION, cut="encoder/2, decoder, decoder/1", boundary=boundary)
    cut = cut_model(given, MESH, 4)
    assert [tuple(s.sharding.spec for s in stage.inputs) for stage in cut.stages] == [
        (),
        boundary[:1],
        boundary[:1],
        boundary,
    ]
    assert [s.label for s in cut.stages] == ["encoder", "encoder", "decoder", "decoder, head, loss"]
    # The encoder's output passes through the stage that begins the decoder.
    assert [len(s.inputs) for s in cut.stages] == [0, 1, 1, 2]
    assert cut.tied == (((0, "params['embed']"), (2, "params['embed']")),)


@pytest.mark.long  # compiled for 5 s; test_what_several_stages_read... computes as well
def test_an_encoder_and_a_decoder_compute_what_they_did() -> None:
    given = dataclasses.replace(TRANSLATION, cut="encoder/2, decoder, decoder/1")
    check_numbers(given, cut_model(given, MESH, 4))


def encoder_decoder_scans(params: Any, source: Any, tokens: Any) -> Any:
    mask = jnp.ones((SEQUENCE, SEQUENCE), bool)

    def decode(y: Any, p: Any) -> Any:
        return layer(y + encoded @ p["cross"], p["own"], jnp.tril(mask), 0.0), None

    with jax.named_scope("encoder"):
        encoded = scan(params["embed"][source], params["encoder"], mask, 0.0)
    with jax.named_scope("decoder"):
        y, _ = jax.lax.scan(decode, params["embed"][tokens], params["decoder"])
    return norm(y) @ params["head"]


@pytest.mark.parametrize("whole", [encoder_decoder_scans, jax.jit(encoder_decoder_scans)])
def test_several_scans_are_cut_by_the_names_of_their_scopes(whole: Any) -> None:
    decoder = jax.tree.map(lambda w: struct((2, *w.shape), None, *w.sharding.spec), DECODER_LAYER)
    params = TRANSLATION.params | {"encoder": stacked(3), "decoder": decoder}
    cut = "encoder/2,decoder,decoder/1"
    stages = cut_model(
        dataclasses.replace(TRANSLATION, model=whole, params=params, cut=cut), MESH, 4
    ).stages
    labels = ["encoder 0-1", "encoder 2", "decoder 0", "decoder 1, loss"]
    assert [s.label for s in stages] == labels
    assert [len(s.inputs) for s in stages] == [0, 1, 1, 2]
    assert stages[1].params["params['encoder']['up']"].shape == (1, DIM, HIDDEN)


def test_an_inference_pipeline_hands_on_and_returns_what_the_model_returns() -> None:
    given = pipeline(scan, loss=None, targets=())
    stages = cut_model(given, MESH, 2).stages
    assert stages[1].outputs[0].shape == (BATCH, SEQUENCE, VOCAB)
    assert stages[1].is_last


def test_balanced_stages_count_the_head() -> None:
    head = struct((DIM, 40 * VOCAB), None, "model")
    given = pipeline(scan, params=weights(stacked()) | {"head": head}, cut="layers:balanced")
    stages = cut_model(dataclasses.replace(given, loss=lambda y, t: jnp.mean(y)), MESH, 2).stages
    assert stages[1].label == "layers 5, head"


# errors ---------------------------------------------------------------------------------------


def refused(given: Pipeline, count: int) -> FlintError:
    with pytest.raises(FlintError) as caught:
        cut_model(given, MESH, count)
    return caught.value


@pytest.mark.parametrize(
    ("cut", "count", "code", "message"),
    [
        ("layers:1,2", 4, "FL241", "has 2 cut points, which make 3 stages, but the pipeline has 4"),
        ("layers:4,2", 3, "FL241", "do not ascend"),
        ("layers:2,6", 3, "FL241", "no stage can begin at layer 6: 'layers' has 6 layers"),
        ("layers", 7, "FL242", "7 stages need at least as many layers, but 'layers' has 6"),
        ("layerz", 3, "FL241", "no layers or scope 'layerz'; did you mean 'layers'?"),
        ("layers/2,laser", 3, "FL241", "no layers or scope 'laser'"),
        ("layers/4,layers/2", 3, "FL241", "are not in program order"),
        ("layers/2,layers/9", 3, "FL241", "no stage can begin at 'layers/9': 'layers' has 6"),
        ("embed,layers/2", 3, "FL241", "are not in program order"),
        ("layers:two", 2, "FL241", "cannot read cut 'layers:two'"),
        ("a,,b", 4, "FL241", "empty name"),
    ],
)
def test_cuts_that_do_not_fit_the_model(cut: str, count: int, code: str, message: str) -> None:
    error = refused(pipeline(scan, cut=cut), count)
    assert error.code == code
    assert message in error.message


def test_a_scan_of_no_layers_has_too_few() -> None:
    error = refused(pipeline(scan, params=weights(stacked(0))), 2)
    assert (error.code, "'layers' has 0" in error.message) == ("FL242", True)


def split_residual(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    for i, p in enumerate(layers):
        with jax.named_scope(f"{i}"):
            hidden = norm(layer(x, p, mask, position))
            with jax.named_scope("add"):
                x = x + jnp.sin(hidden)
    return x


def test_a_cut_inside_a_residual_names_both_values() -> None:
    given = pipeline(split_residual, cut="layers/3/add")
    error = refused(given, 2)
    assert error.code == "FL244"
    assert "stage 0 (embed, layers) and 1 (layers, head, loss)" in error.message
    assert "needs 2 values, but crossing is 1" in error.message
    assert "float32[4,6,8] from layers/2/add at test_jax_cut.py:" in error.message
    assert "float32[4,6,8] from layers/3 at test_jax_cut.py:" in error.message
    assert "read by layers/3/add at test_jax_cut.py:" in error.message
    assert error.help is not None
    assert "crossing=2" in error.help
    both = cut_model(dataclasses.replace(given, crossing=2), MESH, 2)
    assert len(both.stages[1].inputs) == 2


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (lambda: {"cut": "layers"}, "FL241", "several groups of layers: encoder, decoder"),
        (lambda: {"cut": "decoder", "model": _apart}, "FL244", "no value crosses"),
    ],
)
def test_what_two_groups_of_layers_refuse(given: Any, code: str, words: str) -> None:
    error = refused(dataclasses.replace(TRANSLATION, **given()), 2)
    assert error.code == code and words in error.message


def keeping(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    x, kept = jax.lax.scan(lambda x, p: (layer(x, p, mask, position), x), x, layers)
    return x + jnp.sum(kept, 0)


def mixed(x: Any, layers: Any, mask: Any, position: Any) -> Any:
    return scan(x, layers | {"up": jnp.cumsum(layers["up"], 0)}, mask, position)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (keeping, "float32[3,4,6,8] from layers"),
        (mixed, "computed from the parameters of all layers at once"),
    ],
)
def test_values_of_all_layers_must_stay_in_one_stage(run: Any, words: str) -> None:
    error = refused(pipeline(run, params=weights(stacked())), 2)
    assert error.code == "FL244" and words in error.message


def _apart(params: Any, source: Any, tokens: Any) -> Any:
    with jax.named_scope("encoder"):
        unread = params["embed"][source]
    with jax.named_scope("decoder"):
        return params["embed"][tokens] @ params["head"] + 0 * unread.shape[0]


def test_training_needs_a_scalar() -> None:
    error = refused(pipeline(scan, loss=None, targets=(), backward=True), 2)
    assert error.code == "FL240"
    assert "float32[4,6,32]" in error.message


@pytest.mark.parametrize(
    ("path", "is_held"),
    [
        (("outer",), True),
        (("outer", "head"), True),
        (("outer", "head", "inner"), True),
        (("outer", "head", "3"), True),  # a layer of a list that is `outer/head`
        (("outer", "tail"), False),
        (("tail",), False),
    ],
)
def test_a_call_holds_the_scopes_of_what_it_calls(path: tuple[str, ...], is_held: bool) -> None:
    """Such a call is opened, however little of the work it does."""

    @jax.jit
    def called(x: Any) -> Any:
        with jax.named_scope("head"), jax.named_scope("inner"):
            return x + 1

    def whole(x: Any) -> Any:
        with jax.named_scope("outer"):
            return jax.jit(lambda x: 2 * called(x))(x)

    (equation,) = jax.make_jaxpr(whole)(1.0).eqns
    assert _holds(equation, path) is is_held
