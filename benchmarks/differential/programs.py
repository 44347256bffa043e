"""Random programs as people write them: a few blocks, perhaps in a scan, a loss, a gradient, an update.

A program is a list of choices (`choices.py`): a mesh, sizes, blocks of which one is of the family
that the program is named for, how weights, inputs and results are divided. Dimensions have names, and usually each name
has an axis of the mesh for the whole program, as layouts are written; else every argument is divided
in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.differential import control, lookups, products
from benchmarks.differential.blocks import Argument, Block, Family, Sizes, normed
from benchmarks.differential.choices import Choices
from flint.ir.mesh import Mesh
from flint.steps.step import Step

#: Families and how often each is drawn.
FAMILIES: dict[Family, float] = {
    products.product: 3,
    products.einsum: 3,
    products.experts: 2,
    products.reduction: 1,
    products.convolution: 1,
    products.fourier: 0.7,
    lookups.lookup: 2,
    lookups.write: 1,
    lookups.update: 1.5,
    lookups.cache: 1,
    lookups.search: 1,
    lookups.cumulative: 1,
    control.transform: 2,
    control.loop: 1.5,
    control.conditional: 0.7,
    control.manual: 1.5,
    control.pipeline: 1,
}
BY_NAME = {family.__name__: family for family in FAMILIES}
MESHES = (
    {"data": 8},
    {"data": 4, "model": 2},
    {"data": 2, "model": 4},
    {"data": 4, "model": 4},
    {"pod": 2, "data": 2, "model": 4},
    {"pod": 2, "data": 4, "model": 2},
)
#: Axes that a name may have, and how often.
USUAL: dict[str, dict[tuple[str, ...], float]] = {
    "batch": {("pod", "data"): 6, ("data",): 1, ("pod",): 0.5, (): 0.5},
    "seq": {(): 6, ("model",): 1.5, ("data",): 0.5},
    "hidden": {(): 8, ("model",): 1},
    "embed": {(): 3, ("data",): 3, ("pod", "data"): 1},
    "mlp": {("model",): 6, (): 1, ("data",): 0.5},
    "heads": {("model",): 6, (): 1},
    "vocab": {("model",): 3, (): 2, ("data",): 1, ("data", "model"): 0.5},
    "expert": {("data",): 2, ("model",): 2, (): 1},
    "cache": {(): 3, ("model",): 1, ("data",): 0.5},
}
POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
HEADS = {"forward": 3.0, "loss": 1, "gradient": 3, "update": 2, "adam": 1}


@dataclass(frozen=True)
class Program:
    """One generated program; `label` says what its block of `family` does, `name` all of it."""

    family: str
    label: str
    name: str
    mesh: Mesh
    step: Step


def program(choices: Choices, family: str = "") -> Program:
    """The program of these choices, of any family or the one called so (KeyError for another)."""
    sizes = _sizes(choices)
    main = BY_NAME[family] if family else choices.one_of(list(FAMILIES), list(FAMILIES.values()))
    block = main(choices, sizes)
    blocks = _around(choices, sizes, block)
    layers = choices.one_of((1, 2, 4), (6, 1.5, 0.5))
    head = choices.one_of(list(HEADS), list(HEADS.values()))
    policy = (
        choices.one_of(("", *POLICIES), (4, 1, 1, 1)) if head not in ("forward", "loss") else ""
    )
    divide = _rules(choices, sizes)
    kept = divide(sizes.x) if choices.chance(0.4) else None
    model = _Model(blocks, sizes, layers, policy, kept, has_logits=choices.chance(0.25))
    weights, inputs = model.arguments(divide)
    x = _with_all_axes(divide(sizes.x), (weights, inputs), sizes)
    function, first = _headed(model, head, weights, divide)
    out = _out(choices, head, (*first, inputs, x))
    mesh = Mesh(tuple(sizes.mesh.axis_names), tuple(sizes.mesh.axis_sizes))
    donated = (0,) if head in ("update", "adam") and choices.chance(0.7) else ()
    step = Step(
        function, (*first, inputs, x), out_shardings=out, donate_argnums=donated, name="step"
    )
    parts = [
        ", ".join(f"{b.label} {b.detail}".strip() for b in blocks),
        f"{layers} layers" * (layers > 1),
        policy,
        head,
    ]
    shown = [str(tuple(a.sharding.spec)) for a in jax.tree.leaves((x, weights, inputs))]
    said = " | ".join([*filter(None, parts), str(mesh), " ".join(shown)])
    return Program(main.__name__, block.label, f"{main.__name__}: {said}", mesh, step)


def _sizes(c: Choices) -> Sizes:
    """Batch 16 for all meshes to divide; types as in training."""
    axes = c.one_of(MESHES, (3, 2, 3, 3, 1, 1))
    kinds = (AxisType.Auto,) * len(axes)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
    return Sizes(
        b=c.one_of((16, 32)), n=c.one_of((64, 128)), w=c.one_of((128, 64, 256)),
        f=c.one_of((256, 512)), h=8, v=c.one_of((512, 1024)), e=8,
        dtype=c.one_of((jnp.float32, jnp.bfloat16)), mesh=mesh,
    )  # fmt: skip


def _around(c: Choices, s: Sizes, block: Block) -> list[Block]:
    """The block, and perhaps plain layers before and behind it."""
    plain = (products.product, products.einsum)
    before = [c.one_of(plain)(c, s)] if c.chance(0.3) else []
    behind = [c.one_of(plain)(c, s)] if c.chance(0.4) else []
    return [*before, block, *behind]


@dataclass(frozen=True)
class _Model:
    """Blocks one after the other, `layers` times; the function of a program is made of it."""

    blocks: Sequence[Block]
    sizes: Sizes
    layers: int
    policy: str
    pinned: Any
    has_logits: bool

    def arguments(self, divide: Callable[[Argument], Any]) -> tuple[Any, Any]:
        """Weights (of all layers) and inputs, as arrays without data."""
        stack = (self.layers,) if self.layers > 1 else ()
        weights = [
            [
                divide(replace(w, shape=(*stack, *w.shape), names=("",) * len(stack) + w.names))
                for w in b.weights
            ]
            for b in self.blocks
        ]
        last = divide(Argument((self.sizes.w, self.sizes.v), ("embed", "vocab")))
        inputs = [[divide(i) for i in b.inputs] for b in self.blocks]
        targets = [divide(self.sizes.tokens)] if self.has_logits else []
        return (weights, [last] if self.has_logits else []), (inputs, targets)

    def layer(self, x: Any, weights: Any, inputs: Any) -> Any:
        """All blocks once."""
        for block, w, i in zip(self.blocks, weights, inputs, strict=True):
            x = block.apply(x, *w, *i).astype(self.sizes.dtype)
            if self.pinned is not None:
                x = lax.with_sharding_constraint(x, self.pinned.sharding)
        return x

    def activations(self, weights: Any, inputs: Any, x: Any) -> Any:
        """What the last layer gives, or the logits of it."""
        layer = self.layer
        if self.policy:
            layer = jax.checkpoint(layer, policy=getattr(jax.checkpoint_policies, self.policy))

        def turn(y: Any, w: Any) -> tuple[Any, None]:
            return layer(y, w, inputs[0]), None

        x = jnp.tanh(x)
        if self.layers > 1:
            x = lax.scan(turn, x, weights[0], self.layers)[0]
        else:
            x = layer(x, weights[0], inputs[0])
        x = normed(x)
        return x @ weights[1][0] if weights[1] else x * 2

    def loss(self, weights: Any, inputs: Any, x: Any) -> Any:
        """Cross entropy of the targets, or the mean of squares."""
        found = self.activations(weights, inputs, x).astype(jnp.float32)
        if not weights[1]:
            return jnp.mean(jnp.square(found))
        picked = jnp.take_along_axis(found, inputs[1][0][..., None], -1)[..., 0]
        return (jax.nn.logsumexp(found, -1) - picked).mean()


def _headed(
    model: _Model, head: str, weights: Any, divide: Callable[[Argument], Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The program's function, and its arguments before inputs and activations."""
    if head == "forward":
        return model.activations, (weights,)
    if head == "loss":
        return model.loss, (weights,)
    if head == "gradient" or not jax.tree.leaves(weights):
        wanted = (0,) if jax.tree.leaves(weights) else (2,)
        return jax.value_and_grad(model.loss, wanted), (weights,)

    def update(state: Any, inputs: Any, x: Any) -> Any:
        params, *moments = state
        value, grads = jax.value_and_grad(model.loss)(params, inputs, x)
        if not moments:
            return (jax.tree.map(lambda p, g: p - g * 1e-3, params, grads),), value

        def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * jnp.square(g.astype(jnp.float32))
            return (p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype), m, v

        made = jax.tree.map(adam, params, grads, *moments)
        return jax.tree.transpose(
            jax.tree.structure(params), jax.tree.structure((0, 0, 0)), made
        ), value

    def moment(p: Any) -> Any:
        return jax.ShapeDtypeStruct(p.shape, jnp.float32, sharding=p.sharding)

    moments = [jax.tree.map(moment, weights)] * 2 if head == "adam" else []
    return update, ((weights, *moments),)


def _out(c: Choices, head: str, args: tuple[Any, ...]) -> Any:
    """Shardings of the results: none, or those of the arguments that they belong to."""
    if head == "loss" or not c.chance(0.6):
        return None
    if head == "forward":
        return None if args[0][1] else args[-1].sharding
    if head == "gradient" or not jax.tree.leaves(args[0]):
        grads = args[0] if jax.tree.leaves(args[0]) else args[-1]
        return (None, (jax.tree.map(_sharding, grads),))
    return (jax.tree.map(_sharding, args[0]), None)


def _sharding(a: Any) -> Any:
    return a.sharding


# shardings ----------------------------------------------------------------------------------------


def _rules(c: Choices, s: Sizes) -> Callable[[Argument], Any]:
    """How an argument is divided: by its dimensions' names, or in a way of its own."""
    rules = {name: c.one_of(list(axes), list(axes.values())) for name, axes in USUAL.items()}
    free = c.chance(0.1)

    def divide(a: Argument) -> Any:
        wanted = [rules.get(n, (n,) if n in s.mesh.axis_names else ()) for n in a.names]
        if free and a.shape:
            wanted = [() for _ in a.names]
            for axis in c.order(s.mesh.axis_names):
                if c.chance(0.7):
                    wanted[c.index([1] * len(wanted))] += (axis,)
        spec = _fitting(a.shape, wanted, s)
        dtype = s.dtype if a.dtype is None else a.dtype
        return jax.ShapeDtypeStruct(a.shape, dtype, sharding=NamedSharding(s.mesh, spec))

    return divide


def _fitting(shape: tuple[int, ...], wanted: Sequence[tuple[str, ...]], s: Sizes) -> P:
    """Each axis once, and where it divides."""
    used: set[str] = set()
    entries = []
    for size, axes in zip(shape, wanted, strict=True):
        kept: tuple[str, ...] = ()
        for axis in axes:
            n = s.mesh.shape.get(axis, 0)
            if n and axis not in used and size % n == 0:
                kept, size = (*kept, axis), size // n
                used.add(axis)
        entries.append(kept if len(kept) > 1 else kept[0] if kept else None)
    return P(*entries)


def _with_all_axes(x: Any, others: Any, s: Sizes) -> Any:
    """Activations divided over what nothing else uses, too: of other axes Flint assumes nothing."""
    used = {axis for a in jax.tree.leaves((x, others)) for axis in _axes(a.sharding.spec)}
    left = tuple(axis for axis in s.mesh.axis_names if axis not in used)
    wanted = [_axes((entry,)) for entry in x.sharding.spec] + [()] * (3 - len(x.sharding.spec))
    for d in (0, 1, 2):
        wanted[d] += left
    return jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(s.mesh, _fitting(x.shape, wanted, s))
    )


def _axes(spec: Any) -> tuple[str, ...]:
    return tuple(a for e in spec if e for a in (e if isinstance(e, tuple) else (e,)))
