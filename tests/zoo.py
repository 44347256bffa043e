"""Small programs of every kind of parallelism, each for a mesh: what partitioners are compared on.

Sizes are small but large enough that no dimension is too short for its axes, unless the name says
that it does not divide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from flint.ir.mesh import Mesh
from flint.steps.step import Step
from tests.auto_mesh import auto_mesh

F32 = jnp.float32
#: Given the mesh, the function and its abstract arguments.
Build = Callable[[AbstractMesh], tuple[Callable[..., Any], tuple[Any, ...]]]


@dataclass(frozen=True)
class Example:
    """One program and the mesh it is for."""

    name: str
    sizes: dict[str, int]
    build: Build
    out_spec: P | None = None
    trip_counts: dict[str, int] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        """The mesh, as Flint's type."""
        return Mesh(tuple(self.sizes), tuple(self.sizes.values()))

    def step(self) -> Step:
        """The step to capture."""
        mesh = auto_mesh(tuple(self.sizes.values()), tuple(self.sizes))
        function, args = self.build(mesh)
        return Step(
            function,
            args,
            out_shardings=self.out_spec,
            trip_counts=self.trip_counts,
            name=self.name,
        )


def shaped(mesh: AbstractMesh, shape: tuple[int, ...], *spec: Any, dtype: Any = F32) -> Any:
    """An abstract array sharded on `mesh`."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


# transformers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Axes for the batch, for weights (FSDP), for heads and features (TP), for the sequence."""

    batch: tuple[str, ...] = ()
    fsdp: tuple[str, ...] = ()
    tensor: str | None = None
    sequence: str | None = None


@dataclass(frozen=True)
class Shape:
    """Sizes of a small Llama."""

    layers: int = 3
    dim: int = 64
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 128
    vocab: int = 256
    batch: int = 16
    seq: int = 32

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def llama(
    layout: Layout,
    shape: Shape | None = None,
    *,
    remat: bool = True,
    scan: bool = True,
    train: bool = True,
    constrain: bool = True,
    pinned: bool = False,
) -> Build:
    """A Llama training step (SGD), or its forward pass.

    `constrain` pins activations between blocks; `pinned` also those inside, the token table and
    what is saved for the backward pass, as careful programs do (examples/llama_jax.py).
    """
    c = shape or Shape()
    batch = layout.batch or None
    fsdp = layout.fsdp or None
    t = layout.tensor

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def pin(x: Any, *spec: Any) -> Any:
            return lax.with_sharding_constraint(x, P(*spec)) if constrain else x

        def inner(x: Any, *spec: Any) -> Any:
            return lax.with_sharding_constraint(x, P(*spec)) if pinned else x

        def gathered(x: Any) -> Any:
            x = inner(x, batch, layout.sequence, None)
            return pin(x, batch, None, None)

        def norm(x: Any, scale: Any) -> Any:
            return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale

        def attention(x: Any, p: Any) -> Any:
            y = gathered(norm(x, p["n1"]))
            q, k, v = (
                inner(jnp.einsum("bsd,dhk->bshk", y, p[w]), batch, None, t, None)
                for w in ("wq", "wk", "wv")
            )
            q = q.reshape(*q.shape[:2], c.kv_heads, -1, c.head_dim)
            scores = jnp.einsum("bsngk,btnk->bngst", q, k)
            weights = jax.nn.softmax(scores, axis=-1)
            out = jnp.einsum("bngst,btnk->bsngk", weights, v)
            out = out.reshape(*out.shape[:2], c.heads, c.head_dim)
            out = inner(out, batch, None, t, None)
            return pin(jnp.einsum("bshk,hkd->bsd", out, p["wo"]), batch, layout.sequence, None)

        def mlp(x: Any, p: Any) -> Any:
            y = gathered(norm(x, p["n2"]))
            gate, up = (inner(y @ p[w], batch, None, t) for w in ("gate", "up"))
            h = jax.nn.silu(gate) * up
            return pin(h @ p["down"], batch, layout.sequence, None)

        def layer(x: Any, p: Any) -> Any:
            x = x + attention(x, p)
            return x + mlp(x, p)

        def loss(params: Any, tokens: Any, targets: Any) -> Any:
            block = layer
            if remat or pinned:
                block = jax.checkpoint(layer, policy=None if remat else keep_all_but_constraints)
            table = inner(params["embed"], t, None)
            x = pin(inner(table[tokens], batch, None, None), batch, layout.sequence, None)
            if scan:
                x, _ = lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
            else:
                for number in range(c.layers):
                    x = block(x, jax.tree.map(lambda w, n=number: w[n], params["layers"]))
            x = gathered(norm(x, params["norm"]))
            logits = inner(x @ params["head"], batch, None, t)
            picked = jnp.sum(jax.nn.one_hot(targets, c.vocab) * logits, axis=-1)
            return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

        def train_step(params: Any, tokens: Any, targets: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, tokens, targets)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        kv = t if t is None or c.kv_heads % mesh.shape[t] == 0 else None  # too few to shard

        def stacked(dims: tuple[int, ...], *spec: Any) -> Any:
            return shaped(mesh, (c.layers, *dims), None, *spec)

        params = {
            "embed": shaped(mesh, (c.vocab, c.dim), t, fsdp),
            "layers": {
                "n1": stacked((c.dim,)),
                "wq": stacked((c.dim, c.heads, c.head_dim), fsdp, t),
                "wk": stacked((c.dim, c.kv_heads, c.head_dim), fsdp, kv),
                "wv": stacked((c.dim, c.kv_heads, c.head_dim), fsdp, kv),
                "wo": stacked((c.heads, c.head_dim, c.dim), t, None, fsdp),
                "n2": stacked((c.dim,)),
                "gate": stacked((c.dim, c.ffn), fsdp, t),
                "up": stacked((c.dim, c.ffn), fsdp, t),
                "down": stacked((c.ffn, c.dim), t, fsdp),
            },
            "norm": shaped(mesh, (c.dim,)),
            "head": shaped(mesh, (c.dim, c.vocab), fsdp, t),
        }
        tokens = shaped(mesh, (c.batch, c.seq), batch, dtype=jnp.int32)
        return (train_step if train else loss), (params, tokens, tokens)

    return build


def keep_all_but_constraints(primitive: Any, *_: Any, **__: Any) -> bool:
    """What the backward pass recomputes: sharding constraints, so that what it reads has them."""
    return bool(primitive.name != "sharding_constraint")


DATA8, MODEL4 = {"data": 8}, {"model": 4}
GRID = {"data": 8, "model": 4}
DP = Layout(batch=("data",))
FSDP = Layout(batch=("data",), fsdp=("data",))
TP = Layout(tensor="model")
TP_SP = Layout(tensor="model", sequence="model")
DP_TP = Layout(batch=("data",), tensor="model")
FSDP_TP = Layout(batch=("data",), fsdp=("data",), tensor="model")
FSDP_TP_SP = Layout(batch=("data",), fsdp=("data",), tensor="model", sequence="model")
DP_TP_SP = Layout(batch=("data",), tensor="model", sequence="model")
HSDP = Layout(batch=("pod", "data"), fsdp=("data",))
THREE = Layout(batch=("pod", "data"), fsdp=("data",), tensor="model")
FOUR = Layout(batch=("pod", "data", "fsdp"), fsdp=("fsdp",), tensor="model", sequence="model")
TWO_FSDP = Layout(batch=("x", "y"), fsdp=("x", "y"))


def transformers() -> Iterator[Example]:
    """Llama under data, fully sharded, tensor and sequence parallelism."""
    wide = Shape(batch=64)
    yield Example("llama_dp", DATA8, llama(DP))
    yield Example("llama_dp_noremat", DATA8, llama(DP, remat=False))
    yield Example("llama_fsdp", DATA8, llama(FSDP))
    yield Example("llama_fsdp_unrolled", DATA8, llama(FSDP, Shape(layers=2), scan=False))
    yield Example("llama_fsdp_noremat", DATA8, llama(FSDP, remat=False))
    yield Example("llama_tp", MODEL4, llama(TP))
    yield Example("llama_tp_sp", MODEL4, llama(TP_SP))
    yield Example("llama_dp_tp", GRID, llama(DP_TP))
    yield Example("llama_dp_tp_free", GRID, llama(DP_TP, constrain=False))
    yield Example("llama_dp_tp_sp", GRID, llama(DP_TP_SP))
    yield Example("llama_fsdp_tp", GRID, llama(FSDP_TP))
    yield Example("llama_fsdp_tp_sp", GRID, llama(FSDP_TP_SP))
    yield Example("llama_fsdp_tp_infer", GRID, llama(FSDP_TP, train=False))
    yield Example("llama_hsdp", {"pod": 2, "data": 4}, llama(HSDP))
    yield Example("llama_3_axes", {"pod": 2, "data": 4, "model": 4}, llama(THREE))
    four = {"pod": 2, "data": 2, "fsdp": 4, "model": 4}
    yield Example("llama_4_axes", four, llama(FOUR, wide))
    yield Example("llama_fsdp_2_axes", {"x": 4, "y": 4}, llama(TWO_FSDP))
    for name, sizes, layout in (
        ("fsdp", DATA8, FSDP),
        ("tp_sp", MODEL4, TP_SP),
        ("fsdp_tp", GRID, FSDP_TP),
        ("fsdp_tp_sp", GRID, FSDP_TP_SP),
        ("3_axes", {"pod": 2, "data": 4, "model": 4}, THREE),
    ):
        yield Example(f"llama_{name}_pinned", sizes, llama(layout, pinned=True))
        build = llama(layout, pinned=True, remat=False)
        yield Example(f"llama_{name}_pinned_noremat", sizes, build)
    few = Shape(kv_heads=2)
    yield Example("llama_few_kv_heads", {"data": 2, "model": 8}, llama(DP_TP, few))


# mixtures of experts --------------------------------------------------------------------------


def moe_einsum(
    tokens: Any, experts: Any, tensor: str | None = None, *, train: bool = True
) -> Build:
    """Top-1 routing by one-hot masks and einsum; experts are sharded over `experts`."""

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        count, dim, ffn, capacity = 8, 32, 64, 16

        def loss(params: Any, x: Any) -> Any:
            gates = jax.nn.softmax(x @ params["router"], axis=-1)
            chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), count)
            place = (jnp.cumsum(chosen, axis=1) * chosen).astype(jnp.int32)
            mask = jax.nn.one_hot(place - 1, capacity) * chosen[..., None]
            sent = jnp.einsum("gsec,gsd->egcd", mask, x)
            sent = lax.with_sharding_constraint(sent, P(experts))
            h = jax.nn.relu(jnp.einsum("egcd,edf->egcf", sent, params["in"]))
            out = jnp.einsum("egcf,efd->egcd", h, params["out"])
            out = lax.with_sharding_constraint(out, P(experts))
            y = jnp.einsum("gsec,egcd->gsd", mask * gates[..., None], out)
            return jnp.mean(lax.with_sharding_constraint(y, P(tokens)) ** 2)

        params = {
            "router": shaped(mesh, (dim, count)),
            "in": shaped(mesh, (count, dim, ffn), experts, None, tensor),
            "out": shaped(mesh, (count, ffn, dim), experts, tensor, None),
        }
        x = shaped(mesh, (16, 32, dim), tokens)
        return (jax.value_and_grad(loss) if train else loss), (params, x)

    return build


def moe_all_to_all(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Experts over `data` with explicit all-to-alls in shard_map."""

    def experts(x: Any, w_in: Any, w_out: Any) -> Any:  # x: (experts, tokens, dim) to send
        got = lax.all_to_all(x, "data", 0, 1, tiled=True)
        done = jax.nn.relu(got @ w_in) @ w_out
        return lax.all_to_all(done, "data", 1, 0, tiled=True)

    mapped = jax.shard_map(
        experts,
        mesh=mesh,
        in_specs=(P(None, "data"), P("data"), P("data")),
        out_specs=P(None, "data"),
    )

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(mapped(x, *w) ** 2)

    weights = (shaped(mesh, (8, 32, 64), "data"), shaped(mesh, (8, 64, 32), "data"))
    return jax.value_and_grad(loss), (weights, shaped(mesh, (8, 128, 32), None, "data"))


def moe_ragged(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Tokens to experts and back with ragged all-to-alls."""

    def body(x: Any, sizes: Any) -> Any:
        sizes = sizes[0]
        starts = jnp.cumsum(sizes) - sizes
        got = lax.all_to_all(sizes, "data", 0, 0, tiled=True)
        to = jnp.zeros_like(starts)
        out = jnp.zeros((2 * x.shape[0], x.shape[1]), x.dtype)
        y = lax.ragged_all_to_all(x, out, starts, sizes, to, got, axis_name="data")
        back = jnp.zeros_like(x)
        return lax.ragged_all_to_all(jnp.tanh(y), back, starts, got, to, sizes, axis_name="data")

    step = jax.shard_map(
        body, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False
    )
    return step, (
        shaped(mesh, (512, 32), "data"),
        shaped(mesh, (8, 8), "data", dtype=jnp.int32),
    )


def mixtures() -> Iterator[Example]:
    """Experts by einsum and by explicit exchange."""
    yield Example("moe_einsum", DATA8, moe_einsum("data", "data"))
    yield Example("moe_einsum_infer", DATA8, moe_einsum("data", "data", train=False))
    yield Example("moe_einsum_tp", GRID, moe_einsum("data", "data", "model"))
    yield Example("moe_einsum_expert_axis", {"data": 4, "expert": 4}, moe_einsum("data", "expert"))
    yield Example("moe_all_to_all", DATA8, moe_all_to_all)
    yield Example("moe_ragged", DATA8, moe_ragged)


# ring attention and manual collectives --------------------------------------------------------


def ring_attention(batch: str | None = None, *, scan: bool = True) -> Build:
    """Keys and values go round the axis `seq`."""

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        size = mesh.shape["seq"]
        ring = [(i, (i + 1) % size) for i in range(size)]

        def body(q: Any, k: Any, v: Any) -> Any:
            def turn(state: Any, _: Any) -> Any:
                total, weight, k, v = state
                scores = jnp.exp(jnp.einsum("bshd,bthd->bhst", q, k))
                total = total + jnp.einsum("bhst,bthd->bshd", scores, v)
                weight = weight + scores.sum(-1)
                return (
                    total,
                    weight,
                    lax.ppermute(k, "seq", ring),
                    lax.ppermute(v, "seq", ring),
                ), 0

            weight = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), q.dtype)
            state = (jnp.zeros_like(q), weight, k, v)
            if scan:
                state, _ = lax.scan(turn, state, None, length=size)
            else:
                for _ in range(size):
                    state, _ = turn(state, None)
            return state[0] / state[1].transpose(0, 2, 1)[..., None]

        spec = P(batch, "seq")
        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
        )
        q = shaped(mesh, (4, 64, 4, 16), batch, "seq")
        return jax.value_and_grad(lambda q, k, v: jnp.mean(mapped(q, k, v))), (q, q, q)

    return build


def manual(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Every manual collective once."""

    def body(x: Any, w: Any) -> Any:
        y = lax.psum(x @ w, "model")
        y = lax.all_gather(y, "data", axis=0, tiled=True)
        y = lax.psum_scatter(jnp.tanh(y), "data", scatter_dimension=0, tiled=True)
        y = lax.all_to_all(y, "data", split_axis=1, concat_axis=0, tiled=True)
        y = lax.ppermute(y, "data", [(i, (i + 1) % 8) for i in range(8)])
        y = lax.all_to_all(jnp.sin(y), "model", split_axis=0, concat_axis=1, tiled=True)
        return lax.pmax(y, ("data", "model"))

    step = jax.shard_map(
        body, mesh=mesh, in_specs=(P("data", "model"), P("model")), out_specs=P(), check_vma=False
    )
    return step, (shaped(mesh, (64, 64), "data", "model"), shaped(mesh, (64, 128), "model"))


def manual_partial(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`data` by hand, `model` by the partitioner."""

    def body(x: Any, w1: Any, w2: Any) -> Any:
        y = jnp.tanh(x @ w1) @ w2
        return lax.psum(y, "data")

    step = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(P("data"), P(), P()),
        out_specs=P(),
        axis_names={"data"},
        check_vma=False,
    )
    weights = shaped(mesh, (32, 64), None, "model"), shaped(mesh, (64, 32), "model")
    return step, (shaped(mesh, (64, 32), "data"), *weights)


def hand_written() -> Iterator[Example]:
    """Programs with collectives in them."""
    yield Example("ring_attention", {"seq": 8}, ring_attention())
    yield Example("ring_attention_dp", {"data": 2, "seq": 8}, ring_attention("data"))
    yield Example("ring_attention_unrolled", {"seq": 4}, ring_attention(scan=False))
    yield Example("manual", GRID, manual)
    yield Example("manual_partial", GRID, manual_partial)


# convolutions and embeddings ------------------------------------------------------------------


def resnet(spec: tuple[Any, ...], *, train: bool) -> Build:
    """Three convolutions, one strided, with batch normalisation and pooling."""

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def conv(x: Any, k: Any, stride: int = 1) -> Any:
            return lax.conv_general_dilated(
                x, k, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        def loss(params: Any, x: Any) -> Any:
            x = jax.nn.relu(conv(x, params["k1"]))
            mean = jnp.mean(x, axis=(0, 1, 2))
            x = (x - mean) * lax.rsqrt(jnp.var(x, axis=(0, 1, 2)) + 1e-5)
            x = x + conv(jax.nn.relu(conv(x, params["k2"])), params["k3"])
            x = conv(x, params["k4"], 2)
            return jnp.mean(jnp.mean(x, axis=(1, 2)) @ params["head"])

        params = {
            "k1": shaped(mesh, (3, 3, 3, 16)),
            "k2": shaped(mesh, (3, 3, 16, 16)),
            "k3": shaped(mesh, (1, 1, 16, 16)),
            "k4": shaped(mesh, (3, 3, 16, 32)),
            "head": shaped(mesh, (32, 10)),
        }
        step = jax.value_and_grad(loss) if train else loss
        return step, (params, shaped(mesh, (16, 32, 32, 3), *spec))

    return build


def embedding(*spec: Any) -> Build:
    """A table looked up by sharded indices, and its gradient."""

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def loss(table: Any, w: Any, i: Any) -> Any:
            return jnp.mean((table[i] @ w) ** 2)

        table = shaped(mesh, (1024, 64), *spec)
        ids = shaped(mesh, (64, 16), "data", dtype=jnp.int32)
        return jax.grad(loss, argnums=(0, 1)), (table, shaped(mesh, (64, 32)), ids)

    return build


def other_models() -> Iterator[Example]:
    """Convolutional networks and embeddings."""
    yield Example("resnet_dp", DATA8, resnet(("data",), train=True))
    spatial = {"data": 4, "space": 2}
    yield Example("resnet_spatial", spatial, resnet(("data", "space"), train=True))
    yield Example("resnet_spatial_infer", spatial, resnet(("data", "space"), train=False))
    yield Example("embed_vocab", GRID, embedding("model"))
    yield Example("embed_hidden", GRID, embedding(None, "model"))
    yield Example("embed_fsdp", DATA8, embedding("data"))


# single operations ----------------------------------------------------------------------------


def one(function: Callable[..., Any], *args: tuple[Any, ...]) -> Build:
    """A function of arrays given as (shape, spec...) or (shape, spec..., dtype)."""

    def build(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def array(shape: tuple[int, ...], *spec: Any) -> Any:
            is_dtype = bool(spec) and not isinstance(spec[-1], str | tuple | None)
            dtype, spec = (spec[-1], spec[:-1]) if is_dtype else (F32, spec)
            return shaped(mesh, shape, *spec, dtype=dtype)

        return function, tuple(array(*a) for a in args)

    return build


def windows(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")


def scan_over_rows(x: Any, w: Any) -> Any:
    return lax.map(lambda row: jnp.tanh(row @ w), x)


def decide(x: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: jnp.zeros((x.shape[0], w.shape[1])), x)


def iterate(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, c: c / jnp.sum(c, axis=0), x)


X = ((64, 128), "data", "model")
ROWS = ((64, 128), "data")
IDS = ((32,), None, jnp.int32)
SINGLE: dict[str, tuple[Any, ...]] = {
    "op_sort": (lambda x: jnp.sort(x, axis=0), X),
    "op_sort_free": (lambda x: jnp.sort(x, axis=1), ROWS),
    "op_argsort": (lambda x: jnp.argsort(x, axis=0), X),
    "op_cumsum": (lambda x: jnp.cumsum(x, axis=0), X),
    "op_cumsum_free": (lambda x: jnp.cumsum(x, axis=1), ROWS),
    "op_topk": (lambda x: lax.top_k(x, 4)[0], X),
    "op_topk_free": (lambda x: lax.top_k(x, 4)[0], ROWS),
    "op_roll": (lambda x: jnp.roll(x, 3, axis=0), X),
    "op_pad": (lambda x: jnp.pad(x, ((8, 8), (0, 0))), X),
    "op_concat": (lambda x, y: jnp.concatenate([x, y]), X, X),
    "op_concat_free": (lambda x, y: jnp.concatenate([x, y], axis=1), ROWS, ROWS),
    "op_reverse": (lambda x: x[::-1], X),
    "op_slice": (lambda x: x[8:40], X),
    "op_reshape_merge": (lambda x: x.reshape(-1) * 2, X),
    "op_reshape_split": (lambda x: x.reshape(8, 8, 128).sum(1), X),
    "op_transpose": (lambda x: x.T + 1, X),
    "op_fft": (lambda x: jnp.fft.fft(x), ((64, 128), "data", "model", jnp.complex64)),
    "op_argmax": (lambda x: jnp.argmax(x, axis=0), X),
    "op_gather": (lambda t, i: t[i], ((512, 64), "model"), IDS),
    "op_scatter": (lambda t, i, u: t.at[i].add(u), ((512, 64), None, "model"), IDS,
                   ((32, 64), None, "model")),
    "op_scatter_rows": (lambda t, i, u: t.at[i].add(u), ((512, 64), "data"), IDS, ((32, 64),)),
    "op_dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (4, 128)), X,
                         ((), jnp.int32)),
    "op_dynamic_update": (lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)), ROWS,
                          ((64, 4), "data"), ((), jnp.int32)),
    "op_cond": (decide, ((64, 128), "data"), ((128, 64), None, "model")),
    "op_while": (iterate, X),
    "op_vmap": (jax.vmap(lambda a, b: a @ b), ((16, 8, 32), "data"), ((16, 32, 8), "data")),
    "op_map": (scan_over_rows, ((16, 64), None, "model"), ((64, 64), None, "model")),
    "op_map_sharded": (scan_over_rows, ((16, 64), "data"), ((64, 64), None, "model")),
    "op_associative_scan": (lambda x: lax.associative_scan(jnp.multiply, x, axis=0), ROWS),
    "op_erf": (lambda x: jax.nn.gelu(x, approximate=False), X),
    "op_erf_inv": (lambda x: lax.erf_inv(x), X),
    "op_triu": (lambda x: jnp.triu(x), X),
    "op_dot_batch": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), ((16, 32, 64), "data", "model"),
                     ((16, 64, 32), "data", "model")),
    "op_dot_contract": (lambda a, b: a @ b, ((64, 128), "data", "model"), ((128, 64), "model")),
    "op_dot_conflict": (lambda a, b: a @ b, ((64, 128), "data", "model"), ((128, 64), None,
                        "model")),
    "op_conv": (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), ((16, 4, 32, 32), "data"),
                ((8, 4, 3, 3), "model")),
    "op_conv_spatial": (lambda x, k: lax.conv(x, k, (1, 1), "SAME"),
                        ((16, 4, 32, 32), "data", None, "model"), ((8, 4, 3, 3),)),
    "op_reduce_window": (windows, X),
    "op_reduce_window_free": (windows, ((64, 128), None, "model")),
    "op_softmax": (lambda x: jax.nn.softmax(x, axis=1), X),
    "op_outer": (lambda a, b: a[:, None] * b, ((64,), "data"), ((128,), "model")),
    "op_resharding": (lambda x: lax.with_sharding_constraint(x, P("model", "data")) * 2, X),
    "op_gathered": (lambda x: lax.with_sharding_constraint(x, P()) * 2, X),
    "nondividing_dot": (lambda a, b: (a @ b) @ b.T, ((12, 30),), ((30, 42),)),
    "nondividing_heads": (lambda x, w: jnp.einsum("bsd,dhk->bshk", x, w)
                          .reshape(8, 4, 3, 2, 8).sum(3), ((8, 4, 32), "data"),
                          ((32, 6, 8), None, None)),
}  # fmt: skip


def single_operations() -> Iterator[Example]:
    """One operation each, on data=8, model=4."""
    for name, (function, *args) in SINGLE.items():
        yield Example(name, GRID, one(function, *args))

    def cholesky(x: Any) -> Any:
        return lax.linalg.cholesky(x, symmetrize_input=False)

    yield Example("op_cholesky", GRID, one(cholesky, ((16, 32, 32), "data")))
    yield Example("op_cholesky_sharded", GRID, one(cholesky, ((16, 32, 32), "data", "model")))


def uneven_constraint(mesh: AbstractMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A constraint inside the program may shard a dimension that does not divide."""

    def step(x: Any, w: Any) -> Any:
        y = lax.with_sharding_constraint(x @ w, P("data", "model"))
        return jnp.sum(y * y, axis=1)

    return step, (shaped(mesh, (16, 32), "data"), shaped(mesh, (32, 30)))


@functools.cache
def zoo() -> dict[str, Example]:
    """Every example by name."""
    found: dict[str, Example] = {}
    for group in (transformers, mixtures, hand_written, other_models, single_operations):
        for example in group():
            assert example.name not in found, example.name
            found[example.name] = example
    found["nondividing_constraint"] = Example("nondividing_constraint", GRID, uneven_constraint)
    return found


__all__ = ["Example", "zoo"]
