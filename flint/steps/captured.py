"""What a frontend hands to a partitioner: Captured, or CapturedPipeline for a model in stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flint.ir.mesh import Mesh


@dataclass(frozen=True)
class Captured:
    """A whole program for a mesh, before it is split over devices.

    `module` is StableHLO bytecode with debug locations, a Shardy mesh and shardings on the
    arguments (`sdy.sharding`) and constraints; function `main` is the step. Argument locations
    hold parameter names (`params['wq']`), and `jax.buffer_donor` or `tf.aliasing_output` mark
    donated arguments. `trip_counts` gives loops whose bound is not static, by name. `warnings`
    are sentences for the user about what could not be captured as asked for. `is_gspmd`: shardings
    are XLA's old ones (`mhlo.sharding`), which its own partitioner alone reads. `generation` is what the
    call is perhaps a part of: one program of a prefill and a loop of such calls.
    """

    module: bytes
    mesh: Mesh
    name: str
    source: str
    trip_counts: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    is_gspmd: bool = False
    generation: Captured | None = None


class Positions(StrEnum):
    """What runs at the positions of an axis, of which each has its own program."""

    STAGES = "stages"
    POOLS = "pools"


class Role(StrEnum):
    """What an argument or a result of a body is to its pipeline."""

    PARAMETER = "parameter"  #: a weight or buffer, held all step long; as a result its new value
    BATCH = "batch"  #: an argument from the microbatch (tokens, targets): any stage may read it
    INPUT = "input"  #: an argument from the stage before; `number` says which crossing value
    OUTPUT = "output"  #: a result for the stage after, or of the whole model in the last stage
    COTANGENT = "cotangent"  #: an argument: the gradient of OUTPUT `number`, or of LOSS (a scalar)
    INPUT_GRADIENT = "input gradient"  #: a result: the gradient of INPUT `number`
    GRADIENT = "gradient"  #: of the parameter `name`: a result of `step`, an argument of the others
    LOSS = "loss"  #: a result: a scalar, mean over the microbatch
    STATE = "state"  #: optimizer state, argument and result of `update`
    SQUARED_NORM = "squared norm"  #: a scalar: result of `norm`; argument of `update`, all stages'


@dataclass(frozen=True)
class Port:
    """One argument or result of a body. `name` is unique among those of its role, or empty."""

    role: Role
    name: str = ""
    number: int = 0


@dataclass(frozen=True)
class Body:
    """A function of a stage, not yet partitioned.

    `captured` is a module for the whole mesh in which nothing is sharded over the pipeline's `axis`.
    `arguments` and `results` describe those of its `main`, one for one and in order.
    """

    captured: Captured
    axis: str
    arguments: tuple[Port, ...]
    results: tuple[Port, ...]


@dataclass(frozen=True)
class StageBodies:
    """What one stage computes.

    `step` is the forward pass of one microbatch and, in training, its backward pass: PARAMETER,
    BATCH, INPUT and COTANGENT arguments; OUTPUT or LOSS, INPUT_GRADIENT and GRADIENT results, the
    gradients sharded as their parameters. `norm` sums the squares of all gradients of the stage;
    `update` is the optimizer. Both run once in a step, on gradients that are summed over data.
    """

    step: Body
    norm: Body | None = None
    update: Body | None = None


@dataclass(frozen=True)
class CapturedPipeline:
    """A pipeline of which each different stage was captured once.

    `stages[s]` is the index into `bodies` of stage s, `labels[s]` its content in words
    ("embed, layers 0-19"). The schedule says which position of `axis` holds stage s. `tied` are
    ((stage, parameter), (stage, parameter)).
    """

    mesh: Mesh
    name: str
    source: str
    axis: str
    bodies: tuple[StageBodies, ...]
    stages: tuple[int, ...]
    labels: tuple[str, ...]
    microbatches: int
    schedule: str
    chunks: int = 1
    tied: tuple[tuple[tuple[int, str], tuple[int, str]], ...] = ()
    gradient_dtype: str = ""
    reshard_after_forward: bool = True
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def accumulates(self) -> bool:
        """Whether gradients are added to buffers of their own."""
        return self.microbatches > 1 or bool(self.gradient_dtype)
