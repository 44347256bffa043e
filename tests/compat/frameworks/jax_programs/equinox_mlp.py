"""A training loop of Equinox and optax: filtered transformations, donated arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
spread, whole = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())
model = eqx.nn.MLP(64, 64, 256, 3, key=jax.random.PRNGKey(0))
optimizer = optax.adam(1e-3)
state = optimizer.init(eqx.filter(model, eqx.is_array))
model, state = eqx.filter_shard((model, state), whole)


@eqx.filter_jit(donate="all")
def train_step(model, state, x, y):
    model, state = eqx.filter_shard((model, state), whole)
    x, y = eqx.filter_shard((x, y), spread)

    @eqx.filter_value_and_grad
    def loss_of(model):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    loss, grads = loss_of(model)
    updates, state = optimizer.update(grads, state, model)
    model = eqx.apply_updates(model, updates)
    return *eqx.filter_shard((model, state), whole), loss


for step in range(1000):
    x = jax.device_put(np.random.randn(1024, 64).astype(np.float32), spread)
    y = jax.device_put(np.random.randn(1024, 64).astype(np.float32), spread)
    model, state, loss = train_step(model, state, x, y)
    if step % 100 == 0:
        print(step, loss.item())
