"""A language model as Flax's lm1b example trains it: logical axes, a step made in the function."""

import argparse
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import common_utils
from flax.training.train_state import TrainState
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RULES = (
    ("activation_batch", ("data", "fsdp")),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("kv", "tensor"),
    ("embed", "fsdp"),
)


def kernel(*axes):
    return nn.with_logical_partitioning(nn.initializers.xavier_uniform(), axes)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(
            8,
            kernel_init=kernel("embed", "kv"),
            out_kernel_init=kernel("kv", "embed"),
            use_bias=False,
        )(y, mask=nn.make_causal_mask(jnp.ones(x.shape[:2])))
        x = x + nn.Dropout(0.1)(y, deterministic=deterministic)
        y = nn.Dense(2048, kernel_init=kernel("embed", "mlp"), use_bias=False)(nn.LayerNorm()(x))
        y = nn.Dense(512, kernel_init=kernel("mlp", "embed"), use_bias=False)(nn.gelu(y))
        return nn.with_logical_constraint(x + y, ("activation_batch", None, None))


class LM(nn.Module):
    @nn.compact
    def __call__(self, tokens, deterministic=True):
        table = nn.with_logical_partitioning(nn.initializers.normal(1.0), ("vocab", "embed"))
        embed = nn.Embed(30000, 512, embedding_init=table)
        x = embed(tokens)
        for _ in range(6):
            x = Block()(x, deterministic)
        return embed.attend(nn.LayerNorm()(x))


def train_step(state, batch, learning_rate_fn, dropout_rng):
    tokens = batch["inputs"]
    weights = jnp.where(tokens > 0, 1, 0).astype(jnp.float32)
    rngs = {"dropout": jax.random.fold_in(dropout_rng, state.step)}

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, tokens, deterministic=False, rngs=rngs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
        return (losses * weights).sum() / weights.sum()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    rate = learning_rate_fn(state.step)
    metrics = {"loss": loss, "denominator": weights.sum(), "learning_rate": rate}
    return state.apply_gradients(grads=grads), metrics


def eval_step(params, batch, apply_fn):
    logits = apply_fn({"params": params}, batch["inputs"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["inputs"]).mean()


def train_and_evaluate(tensor, steps):
    shape = (1, jax.device_count() // tensor, tensor)
    mesh = Mesh(mesh_utils.create_device_mesh(shape), ("data", "fsdp", "tensor"))
    model = LM()
    rng, init_rng = jax.random.split(jax.random.PRNGKey(0))
    schedule = optax.warmup_cosine_decay_schedule(0, 1e-3, 1000, 10000)
    optimizer = optax.adamw(schedule)

    def init_state(rng):
        params = model.init(rng, jnp.ones((8, 128), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    abstract = jax.eval_shape(init_state, init_rng)
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(abstract), mesh, RULES)
    with mesh, nn.logical_axis_rules(RULES):
        state = nn.meta.unbox(jax.jit(init_state, out_shardings=shardings)(init_rng))
    place = functools.partial(
        jax.make_array_from_process_local_data, NamedSharding(mesh, P(("data", "fsdp")))
    )
    jit_train = jax.jit(train_step, static_argnums=2, donate_argnums=0)
    jit_eval = jax.jit(eval_step, static_argnums=2)
    history = []
    with mesh, nn.logical_axis_rules(RULES):
        for step in range(int(state.step), steps):
            tokens = np.random.randint(1, 30000, (4 * mesh.shape["fsdp"], 128))
            batch = jax.tree.map(place, {"inputs": tokens.astype(np.int32)})
            state, metrics = jit_train(state, batch, schedule, rng)
            history.append(metrics)
            if step % 5 == 0 or step == steps - 1:
                metrics = common_utils.stack_forest(history)
                rate = float(metrics.pop("learning_rate")[-1])
                assert rate == np.float32(step * 1e-6), (rate, step)
                sums = jax.tree.map(jnp.sum, metrics)
                print(step, {k: float(v) for k, v in sums.items()}, int(state.step))
                print("held out", float(jit_eval(state.params, batch, state.apply_fn)))
                history = []


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    train_and_evaluate(arguments.tensor, arguments.steps)
