"""One clear error for each thing that does not fit in a JAX pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import flint
from flint import FlintError
from flint.frontends.jax_pipeline import capture_jax_pipeline
from flint.ir.mesh import Mesh
from tests.jax_pipelines import BATCH, LENGTH, MESH, WIDTH, parts, shaped
from tests.jax_pipelines import pipeline as decoder

FLAT = Mesh(("pipe", "data"), (2, 2))
WEIGHT = shaped((WIDTH, WIDTH), mesh=FLAT)
X = shaped((BATCH, WIDTH), "data", mesh=FLAT)


def refused(given: flint.Pipeline | Callable[[], flint.Pipeline], mesh: Mesh = MESH) -> FlintError:
    """The error of a pipeline, or of making one."""
    with pytest.raises(FlintError) as found:
        capture_jax_pipeline(given if isinstance(given, flint.Pipeline) else given(), mesh)
    return found.value


def block(w: Any, x: Any) -> Any:
    """A stage."""
    return jnp.tanh(x @ w)


def two(w: Any, x: Any) -> Any:
    """A stage from which two values go."""
    return x @ w, x


def mean(y: Any) -> Any:
    """A loss."""
    return jnp.mean(y)


def stages(*functions: Any, **options: Any) -> flint.Pipeline:
    """Square stages on FLAT."""
    given: dict[str, Any] = {
        "stages": [flint.Stage(f, WEIGHT) for f in functions],
        "inputs": (X,),
        "loss": mean,
        "microbatches": 2,
    }
    return flint.Pipeline(**(given | options))


TOKENS = shaped((BATCH, LENGTH), "data", None, dtype=jnp.int32)
PIPED = shaped((BATCH, LENGTH), "pipe", None, dtype=jnp.int32)

CASES: list[tuple[Callable[[], flint.Pipeline], Mesh, str, str]] = [
    (lambda: decoder(microbatches=3), MESH, "FL243", "3 microbatches do not divide the batch of 8"),
    (lambda: decoder(microbatches=8), MESH, "FL103", "dimension 0 (1) of a microbatch of tokens"),
    (lambda: decoder(microbatches=0), MESH, "FL240", "microbatches of flint.Pipeline is 0, not"),
    (lambda: decoder(axis="pipes"), MESH, "FL102", "did you mean 'pipe'"),
    (lambda: decoder(inputs=(PIPED,)), MESH, "FL240", "tokens is sharded over mesh axis 'pipe'"),
    (
        lambda: decoder(boundary=P("pipe")),
        MESH,
        "FL240",
        "the value after embed, layers 0-1 is sharded",
    ),
    (lambda: decoder(boundary=(P(), P())), MESH, "FL240", "boundary gives 2 shardings"),
    (lambda: decoder(boundary=P(None, ("data", "model"), "x")), MESH, "FL102", "no axis 'x'"),
    (lambda: decoder(stages=parts(count=1)), MESH, "FL242", "2 stages for 1 layers of 'layers'"),
    (lambda: decoder(split=[4, 0]), MESH, "FL242", "leaves stage 1 without layers"),
    (lambda: decoder(split=[4, 1]), MESH, "FL240", "2 numbers that add up to 5"),
    (lambda: decoder(split="evenly"), MESH, "FL240", "there is no split 'evenly'"),
    (lambda: decoder(stages=parts() + parts()), MESH, "FL240", "2 Layers are given"),
    (
        lambda: decoder(stages=[*parts(), parts()[-1]]),
        MESH,
        "FL240",
        "two parts of the pipeline are call",
    ),
    (lambda: decoder(stages=()), MESH, "FL240", "neither is given"),
    (lambda: decoder(loss=None), MESH, "FL240", "targets are given without a loss"),
    (lambda: decoder(clip_norm=1.0), MESH, "FL240", "clip_norm is given without an optimizer"),
    (lambda: decoder(optimizer="adam"), MESH, "FL240", "did you mean 'adamw'"),
    (lambda: decoder(optimizer=("sgd",)), MESH, "FL240", "the optimizer is tuple"),
    (lambda: decoder(gradient_dtype="float23"), MESH, "FL240", "did you mean 'float32'"),
    (lambda: decoder(platform="cudo"), MESH, "FL207", "no platform 'cudo'"),
    (
        lambda: decoder(tied=[("embed['tabel']", "head['table']")]),
        MESH,
        "FL240",
        "'embed['table']'",
    ),
    (
        lambda: decoder(tied=[("embed['table']", "layers['up']")]),
        MESH,
        "FL240",
        "which is in stages 0, 1",
    ),
    (lambda: decoder(inputs=TOKENS), MESH, "FL240", "inputs of flint.Pipeline is ShapeDtypeStruct"),
    (lambda: decoder(stages=[mean]), MESH, "FL240", "stages of flint.Pipeline is [function]"),
    (lambda: decoder(microbatches="4"), MESH, "FL240", "is '4', not a whole number of 1 to"),
    (lambda: decoder(microbatches=2.0), MESH, "FL240", "is 2.0, not a whole number of 1 to"),
    (
        lambda: decoder(gradient_dtype=jnp.float32),
        MESH,
        "FL240",
        "gradient_dtype of flint.Pipeline is",
    ),
    (
        lambda: decoder(optimizer="sgd", clip_norm=0),
        MESH,
        "FL240",
        "clip_norm of flint.Pipeline is 0, not",
    ),
    (
        lambda: decoder(optimizer="sgd", clip_norm="1"),
        MESH,
        "FL240",
        "clip_norm of flint.Pipeline is '1'",
    ),
    (lambda: decoder(boundary=3), MESH, "FL240", "boundary of flint.Pipeline is 3, not"),
    (lambda: decoder(boundary="data"), MESH, "FL240", "boundary of flint.Pipeline is 'data'"),
    (lambda: decoder(split=None), MESH, "FL240", "split of flint.Layers is None"),
    (lambda: decoder(split=[2.0, 2.0]), MESH, "FL240", "split of flint.Layers is [2.0, 2.0]"),
    (lambda: decoder(stages=parts(count=4.0)), MESH, "FL240", "count of flint.Layers is 4.0"),
    (
        lambda: decoder(stages=[flint.Stage(block, (), 3)]),
        MESH,
        "FL240",
        "name of flint.Stage is 3",
    ),
    (lambda: decoder(tied=["embed['table']"]), MESH, "FL240", "not a list of pairs of names"),
    (lambda: decoder(tied=[("a", "a")]), MESH, "FL240", "tied pairs a with itself"),
    (lambda: decoder(tied=[("a", "b"), ("b", "a")]), MESH, "FL240", "tied pairs b with a twice"),
    (lambda: decoder(cut="layers:2"), MESH, "FL240", "cut of a pipeline is given with stages"),
    (
        lambda: decoder(params={"w": WEIGHT}),
        MESH,
        "FL240",
        "params of a pipeline is given with stages",
    ),
    (
        lambda: decoder(stages=(), model=mean, cut=2),
        MESH,
        "FL240",
        "cut of flint.Pipeline is 2, not text",
    ),
    (
        lambda: stages(block),
        FLAT,
        "FL240",
        "1 stages are given, but the pipeline has 2: 'pipe' (2)",
    ),
    (
        lambda: stages(two, block),
        FLAT,
        "FL244",
        "2 values (float32[4,32], float32[4,32]) leave stage0",
    ),
    (
        lambda: stages(block, block, crossing=2),
        FLAT,
        "FL244",
        "1 values (float32[4,32]) leave stage0",
    ),
    (lambda: stages(lambda w, x: {"x": x}, block), FLAT, "FL244", "PyTreeDef({'x': *})"),
    (lambda: stages(block, block, loss=lambda y: y), FLAT, "FL240", "loss returns float32[4,32]"),
    (
        lambda: stages(block, block, loss=None, backward=True),
        FLAT,
        "FL240",
        "stage1 returns float32[4,3",
    ),
    (lambda: stages(block, lambda w, x: x @ w.no), FLAT, "FL203", "AttributeError"),
    (lambda: stages(block, block, inputs=(3.0,)), FLAT, "FL104", "argument x is float"),
    (lambda: stages(block, block, inputs=(shaped((), mesh=FLAT),)), FLAT, "FL243", "x is a scalar"),
]


@pytest.mark.parametrize(("given", "mesh", "code", "message"), CASES, ids=range(len(CASES)))
def test_refused(given: Callable[[], flint.Pipeline], mesh: Mesh, code: str, message: str) -> None:
    """Code and words of each error."""
    error = refused(given, mesh)
    assert error.code == code and message in str(error)


def test_sharded_parameter() -> None:
    """A parameter over the pipeline's axis is named, with where and what to do."""
    first = flint.Stage(block, {"w": shaped((WIDTH, WIDTH), ("data", "pipe"), mesh=FLAT)})
    error = refused(stages(block, block, stages=[first, first]), FLAT)
    assert error.code == "FL240" and "stage0['w'] is sharded over mesh axis 'pipe'" in str(error)
    assert error.place is not None and "float32[32,32], sharding P(('data', 'pipe'))" in error.place


def test_layers_that_change_their_input() -> None:
    """A layer returns what it takes."""
    layers = flint.Layers(lambda w, x: (x @ w).astype(jnp.bfloat16), WEIGHT, 4)
    error = refused(stages(stages=[layers]), FLAT)
    assert error.code == "FL240"
    assert "a layer of 'layers' takes float32[4,32] and returns bfloat16[4,32]" in str(error)


def test_optimizer_that_returns_something_else() -> None:
    """Parameters keep their types, and state its structure."""

    def init(params: Any) -> Any:
        return {}

    def wider(params: Any, gradients: Any, state: Any) -> Any:
        return {n: p.astype(jnp.bfloat16) for n, p in params.items()}, state

    error = refused(stages(block, block, optimizer=(init, wider)), FLAT)
    assert error.code == "FL240" and "bfloat16[32,32] for float32[32,32]" in str(error)
    nothing = refused(stages(block, block, optimizer=(init, lambda p, g, s: p)), FLAT)
    assert nothing.code == "FL240" and "update returns PyTreeDef" in str(nothing)


def test_state_over_the_pipelines_axis() -> None:
    """Shardings of optimizer state are checked as those of parameters."""

    def init(params: Any) -> Any:
        return shaped((2,), "pipe", mesh=FLAT)

    error = refused(stages(block, block, optimizer=(init, lambda p, g, s: (p, s))), FLAT)
    assert error.code == "FL240" and "state is sharded over mesh axis 'pipe'" in str(error)


def test_tied_parameters_that_differ() -> None:
    """One parameter has one shape and sharding."""
    first = flint.Stage(block, WEIGHT, "a")
    other = flint.Stage(block, shaped((WIDTH, WIDTH), None, "data", mesh=FLAT), "b")
    error = refused(stages(stages=[first, other], tied=[("a", "b")]), FLAT)
    assert error.code == "FL240" and "tied parameters differ: a is" in str(error)
