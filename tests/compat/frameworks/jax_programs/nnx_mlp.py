"""A training loop of Flax NNX: objects that hold their state, partitioned by annotations."""

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh(
    (jax.device_count() // 8, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2
)


class MLP(nnx.Module):
    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        columns = nnx.with_partitioning(init, (None, "model"))
        rows = nnx.with_partitioning(init, ("model", None))
        self.up = nnx.Linear(256, 1024, kernel_init=columns, rngs=rngs)
        self.down = nnx.Linear(1024, 256, kernel_init=rows, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.up(x))))


@nnx.jit
def create():
    model = MLP(nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


@nnx.jit
def train_step(model, optimizer, metrics, x, y):
    loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss)
    return loss


with jax.set_mesh(mesh):
    model = create()
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    for step in range(1000):
        batch = np.random.randn(4096, 256).astype(np.float32)
        x = jax.device_put(batch, NamedSharding(mesh, P("data")))
        loss = train_step(model, optimizer, metrics, x, x)
        if step % 100 == 0:
            print(step, {k: float(v) for k, v in metrics.compute().items()})
            metrics.reset()
