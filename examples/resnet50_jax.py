"""ResNet-50 v1.5: one training step on ImageNet shapes.

    flint capture examples/resnet50_jax.py --mesh 32x2 -o trace
    flint capture examples/resnet50_jax.py --mesh 32x2 --set spatial=true

Configuration: "Deep Residual Learning" (arXiv 1512.03385), table 1, 50 layers; v1.5 puts the
stride of a block in its 3x3 convolution, as MLPerf, torchvision and NVIDIA's examples do. Weights
are float32, convolutions bfloat16. The mean and variance of batch norm are over the global batch,
so each layer reduces them over the mesh. SGD with momentum and label smoothing as in MLPerf.

    spatial  shards the height of the images over "model", as long as it divides, and the batch over
             "data" alone; otherwise both axes carry batch
    batch    images over the whole mesh; 0 is 64 for each rank that the batch is sharded over
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first
EXPANSION = 4
CLASSES = 1000


def abstract_params(mesh: AbstractMesh):
    """Weights, and the running statistics of each batch norm, on every device."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P()))

    def conv(name, size, inputs, outputs):
        norm = {"scale": array(outputs), "bias": array(outputs)}
        params[name] = {"kernel": array(size, size, inputs, outputs)} | norm
        statistics[name] = {"mean": array(outputs), "variance": array(outputs)}

    params, statistics = {}, {}
    conv("stem", 7, 3, 64)
    inputs = 64
    for stage, (width, blocks, _) in enumerate(STAGES):
        for block in range(blocks):
            name = f"stage{stage}/block{block}"
            if block == 0:
                conv(f"{name}/shortcut", 1, inputs, width * EXPANSION)
            conv(f"{name}/conv0", 1, inputs, width)
            conv(f"{name}/conv1", 3, width, width)
            conv(f"{name}/conv2", 1, width, width * EXPANSION)
            inputs = width * EXPANSION
    params["head"] = {"kernel": array(inputs, CLASSES), "bias": array(CLASSES)}
    return params, statistics


class Network:
    """The forward pass. Collects the new running statistics in `statistics`."""

    def __init__(self, params, statistics, mesh: AbstractMesh, spatial: bool):
        self.params, self.statistics = params, dict(statistics)
        self.mesh, self.spatial = mesh, spatial

    def constrain(self, x):
        divides = self.spatial and x.shape[1] % self.mesh.shape["model"] == 0
        spec = image_spec(self.spatial, divides)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def conv_norm(self, name, x, stride=1):
        """Convolution, then batch norm with the statistics of the whole batch."""
        p, pad = self.params[name], self.params[name]["kernel"].shape[0] // 2
        x = jax.lax.conv_general_dilated(
            x, p["kernel"].astype(x.dtype), (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        x = self.constrain(x)
        x32 = x.astype(jnp.float32)
        mean = jnp.mean(x32, axis=(0, 1, 2))
        variance = jnp.mean(jnp.square(x32), axis=(0, 1, 2)) - jnp.square(mean)
        old = self.statistics[name]
        self.statistics[name] = {
            "mean": 0.9 * old["mean"] + 0.1 * mean,
            "variance": 0.9 * old["variance"] + 0.1 * variance,
        }
        factor = jax.lax.rsqrt(variance + 1e-5) * p["scale"]
        return ((x32 - mean) * factor + p["bias"]).astype(x.dtype)

    def block(self, name, x, stride):
        shortcut = x
        if f"{name}/shortcut" in self.params:
            shortcut = self.conv_norm(f"{name}/shortcut", x, stride)
        y = jax.nn.relu(self.conv_norm(f"{name}/conv0", x))
        y = jax.nn.relu(self.conv_norm(f"{name}/conv1", y, stride))
        return jax.nn.relu(self.conv_norm(f"{name}/conv2", y) + shortcut)

    def __call__(self, images):
        with jax.named_scope("stem"):
            x = jax.nn.relu(self.conv_norm("stem", images.astype(jnp.bfloat16), 2))
            pad = ((0, 0), (1, 1), (1, 1), (0, 0))
            window = functools.partial(
                jax.lax.reduce_window, window_dimensions=(1, 3, 3, 1), window_strides=(1, 2, 2, 1)
            )
            x = self.constrain(window(x, -jnp.inf, jax.lax.max, padding=pad))
        for stage, (_, blocks, stride) in enumerate(STAGES):
            for block in range(blocks):
                with jax.named_scope(f"stage{stage}/block{block}"):
                    x = self.block(f"stage{stage}/block{block}", x, stride if block == 0 else 1)
        with jax.named_scope("head"):
            x = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
            return x @ self.params["head"]["kernel"] + self.params["head"]["bias"]


def image_spec(spatial: bool, height: bool) -> P:
    return P("data" if spatial else ("data", "model"), "model" if height else None)


def loss_fn(params, statistics, images, labels, mesh, spatial, smoothing=0.1):
    network = Network(params, statistics, mesh, spatial)
    logits = network(images)
    with jax.named_scope("loss"):
        target = jax.nn.one_hot(labels, CLASSES) * (1 - smoothing) + smoothing / CLASSES
        loss = -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), axis=-1))
    return loss, network.statistics


@jax.jit
def sgd(p, g, momentum, lr=0.1, decay=5e-5):
    momentum = 0.9 * momentum + g + decay * p
    return p - lr * momentum, momentum


def train_step(params, momentum, statistics, images, labels, *, mesh, spatial):
    grad = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, statistics), grads = grad(params, statistics, images, labels, mesh, spatial)
    with jax.named_scope("optimizer"):
        new = jax.tree.map(sgd, params, grads, momentum)
        params, momentum = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, momentum, statistics, loss


@flint.entry(axes=("data", "model"))
def train(
    mesh: AbstractMesh, *, spatial: bool = False, batch: int = 0, image: int = 224
) -> flint.Step:
    """One training step."""
    params, statistics = abstract_params(mesh)
    batch_axes = image_spec(spatial, False)[0]
    ranks = mesh.shape["data"] if spatial else math.prod(mesh.shape.values())
    batch = batch or 64 * ranks
    images = jax.ShapeDtypeStruct(
        (batch, image, image, 3), jnp.float32,
        sharding=NamedSharding(mesh, image_spec(spatial, spatial)),
    )  # fmt: skip
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=NamedSharding(mesh, P(batch_axes)))
    step = functools.partial(train_step, mesh=mesh, spatial=spatial)
    args = (params, params, statistics, images, labels)
    return flint.Step(step, args, donate_argnums=(0, 1, 2), name="resnet50")
