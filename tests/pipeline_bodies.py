"""Stage bodies of a small model, partitioned, for tests of what pipelines do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from flint.frontends.jax_stages.bodies import BodyFunction, capture_body
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.passes.pipeline.split.parts import PartitionedBody, partition_body
from flint.steps.captured import Body, Port, Role

#: pipe x data x model.
MESH = Mesh(("pipe", "data", "model"), (2, 4, 2))
LAYERS, BATCH, LENGTH, WIDTH, HIDDEN, VOCABULARY = 3, 8, 16, 32, 64, 128


@dataclass(frozen=True)
class Model:
    """A stage of `LAYERS` layers of two products of matrices, and what is around them.

    `sharding` is of the weights: "tp" (model), "fsdp" (data), "both", "ddp" (none). `place` is
    where the stage lies: "first" looks tokens up, "last" has a head and the loss, "middle"
    neither, "only" both.
    """

    sharding: str = "both"
    place: str = "middle"
    remat: str = "none"
    scan: bool = True
    dtype: Any = jnp.bfloat16
    bias: bool = False
    inference: bool = False
    sequence: bool = False

    @property
    def first(self) -> bool:
        """Whether the stage takes tokens."""
        return self.place in ("first", "only")

    @property
    def last(self) -> bool:
        """Whether the stage has the loss."""
        return self.place in ("last", "only")


def specs(model: Model) -> dict[str, P]:
    """Shardings of the parameters."""
    data = "data" if model.sharding in ("fsdp", "both") else None
    tp = "model" if model.sharding in ("tp", "both") else None
    found = {"w1": P(None, data, tp), "w2": P(None, tp, data), "scale": P(None, None)}
    if model.bias:
        found["b1"] = P(None, tp)
    if model.first:
        found["table"] = P(data, None)
    if model.last:
        found["head"] = P(data, tp)
    return found


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters."""
    found: dict[str, tuple[int, ...]] = {
        "w1": (LAYERS, WIDTH, HIDDEN),
        "w2": (LAYERS, HIDDEN, WIDTH),
        "scale": (LAYERS, WIDTH),
    }
    if model.bias:
        found["b1"] = (LAYERS, HIDDEN)
    if model.first:
        found["table"] = (VOCABULARY, WIDTH)
    if model.last:
        found["head"] = (WIDTH, VOCABULARY)
    return found


def activations(model: Model) -> P:
    """Sharding of values between layers."""
    return P("data", "model" if model.sequence else None, None)


def layer(model: Model, x: Any, p: dict[str, Any]) -> Any:
    """One layer: normalise, up, gelu, down, residual."""
    tp = "model" if model.sharding in ("tp", "both") else None
    wide = x.astype(jnp.float32)
    norm = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    h = (norm * p["scale"]).astype(x.dtype)
    w1 = lax.with_sharding_constraint(p["w1"], P(None, tp))
    w2 = lax.with_sharding_constraint(p["w2"], P(tp, None))
    up = h @ w1
    if "b1" in p:
        up = up + p["b1"]
    up = lax.with_sharding_constraint(up, P("data", None, tp))
    out = jax.nn.gelu(up) @ w2
    return lax.with_sharding_constraint(x + out, activations(model))


def forward(model: Model, params: dict[str, Any], x: Any, targets: Any) -> Any:
    """The stage's function."""
    if model.first:
        table = lax.with_sharding_constraint(params["table"], P(None, None))
        x = lax.with_sharding_constraint(table[x], activations(model))
    stacked = {k: v for k, v in params.items() if k in ("w1", "w2", "scale", "b1")}

    def one(x: Any, p: dict[str, Any]) -> Any:
        return layer(model, x, p)

    if model.remat == "full":
        one = jax.checkpoint(one)
    if model.scan:
        x, _ = lax.scan(lambda x, p: (one(x, p), None), x, stacked)
    else:
        for i in range(LAYERS):
            x = one(x, {k: v[i] for k, v in stacked.items()})
    if model.last:
        head = lax.with_sharding_constraint(
            params["head"], P(None, "model" if model.sharding in ("tp", "both") else None)
        )
        logits = (x @ head).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()
    return x


def body_of(model: Model) -> Body:
    """The stage's joint function of one microbatch, captured."""
    mesh = abstract_mesh(MESH)

    def shaped(shape: tuple[int, ...], spec: P, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    names = sorted(shapes(model))
    params = {n: shaped(shapes(model)[n], specs(model)[n], model.dtype) for n in names}
    tokens = shaped((BATCH, LENGTH), P("data", None), jnp.int32)
    hidden = shaped((BATCH, LENGTH, WIDTH), activations(model), model.dtype)
    arguments: list[tuple[Port, Any]] = [(Port(Role.PARAMETER, n), params[n]) for n in names]
    x = (Port(Role.BATCH, "tokens"), tokens) if model.first else (Port(Role.INPUT), hidden)
    arguments.append(x)
    if model.last:
        arguments.append((Port(Role.BATCH, "targets"), tokens))
    if not model.inference:
        seed = shaped((), P(), jnp.float32) if model.last else hidden
        arguments.append((Port(Role.COTANGENT), seed))
    results = [Port(Role.LOSS) if model.last else Port(Role.OUTPUT)]
    if not model.inference:
        results += [] if model.first else [Port(Role.INPUT_GRADIENT)]
        results += [Port(Role.GRADIENT, n) for n in names]

    def step(*values: Any) -> Any:
        by = dict(zip([p for p, _ in arguments], values, strict=True))
        p = {n: by[Port(Role.PARAMETER, n)] for n in names}
        targets = by.get(Port(Role.BATCH, "targets"))
        if model.inference:
            return (forward(model, p, by[x[0]], targets),)
        if model.first:
            y, pull = jax.vjp(lambda p: forward(model, p, by[x[0]], targets), p)
            gradients, given = pull(by[Port(Role.COTANGENT)])[0], ()
        else:
            y, pull = jax.vjp(lambda p, x: forward(model, p, x, targets), p, by[x[0]])
            gradients, given = pull(by[Port(Role.COTANGENT)])
            given = (lax.with_sharding_constraint(given, activations(model)),)
        of = [lax.with_sharding_constraint(gradients[n], specs(model)[n]) for n in names]
        return (y, *given, *of)

    one = BodyFunction("step", step, tuple(arguments), tuple((p, None) for p in results))
    return capture_body(one, MESH, "pipe", "cuda", "test")


def stage_of(
    function: Callable[[dict[str, Any], Any], Any],
    params: dict[str, tuple[tuple[int, ...], P]],
    x: tuple[tuple[int, ...], P] = ((BATCH, LENGTH, WIDTH), P("data", None, None)),
    dtype: Any = jnp.float32,
) -> PartitionedBody:
    """A middle stage of any `function(params, x) -> y` with y like x, partitioned.

    `params` are shapes and shardings by name, as is `x`.
    """
    mesh = abstract_mesh(MESH)

    def shaped(of: tuple[tuple[int, ...], P]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(of[0], dtype, sharding=NamedSharding(mesh, of[1]))

    def step(*values: Any) -> Any:
        given = dict(zip(params, values, strict=False))
        y, pull = jax.vjp(function, given, values[-2])
        gradients, back = pull(values[-1])
        kept = lax.with_sharding_constraint
        return (
            kept(y, x[1]),
            kept(back, x[1]),
            *(kept(gradients[n], params[n][1]) for n in params),
        )

    takes = [(Port(Role.PARAMETER, n), shaped(of)) for n, of in params.items()]
    gives: list[tuple[Port, Any]] = [(Port(Role.GRADIENT, n), None) for n in params]
    function_of_stage = BodyFunction(
        "step",
        step,
        (*takes, (Port(Role.INPUT), shaped(x)), (Port(Role.COTANGENT), shaped(x))),
        ((Port(Role.OUTPUT), None), (Port(Role.INPUT_GRADIENT), None), *gives),
    )
    return partition_body(capture_body(function_of_stage, MESH, "pipe", "cuda", "test"))


def partitioned(model: Model) -> PartitionedBody:
    """The stage's body as the program of one device."""
    return partition_body(body_of(model))
