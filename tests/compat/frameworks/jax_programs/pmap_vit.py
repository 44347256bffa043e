"""A ViT under pmap, as big_vision was written: initialised on the host, replicated, averaged."""

import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


class ViT(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(128, (16, 16), strides=(16, 16), padding="VALID")(images)
        x = x.reshape(x.shape[0], -1, 128)
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
            x = x + nn.Dense(128)(nn.gelu(nn.Dense(512)(nn.LayerNorm()(x))))
        return nn.Dense(1000)(x.mean(1))


def main():
    model, devices = ViT(), jax.local_device_count()

    @functools.partial(jax.jit, backend="cpu")
    def init(rng):
        return model.init(rng, jnp.zeros((1, 64, 64, 3)))["params"]

    params = init(jax.random.PRNGKey(0))
    print("parameters", sum(p.size for p in jax.tree.leaves(params)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1, momentum=0.9))
    state = flax.jax_utils.replicate(state)

    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
    def update_fn(state, images, labels):
        def loss_fn(params):
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
        return state.apply_gradients(grads=grads), loss

    rng = np.random.default_rng(0)
    for step in range(1000):
        images = rng.standard_normal((devices, 8, 64, 64, 3)).astype(np.float32)
        labels = rng.integers(0, 1000, (devices, 8))
        state, loss = update_fn(state, images, labels)
        if step % 5 == 0:
            reached = int(flax.jax_utils.unreplicate(state).step)
            assert reached == step + 1
            print(reached, float(jax.device_get(loss)[0]))


main()
