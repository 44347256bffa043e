"""Pipeline: a model in stages, and how its microbatches go through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flint.io.fields import (
    ANYTHING,
    BOOLEAN,
    FUNCTION,
    POSITIVE,
    SEQUENCE,
    TEXT,
    Allowed,
    check_fields,
    count,
    each,
    instance,
    one_of,
    optional,
)

#: A pipeline whose fields do not fit.
_FIELD = "FL240"
#: No schedule is worth simulating beyond: a step of a pipeline has tens of microbatches.
MOST_MICROBATCHES = 16_384
#: Stages that one rank holds.
MOST_CHUNKS = 1_024
_BOUNDARY = Allowed(
    "a sharding, or one for each value that crosses",
    lambda v: (
        v is None
        or hasattr(v, "spec")
        or (hasattr(v, "__iter__") and not isinstance(v, str | type))
    ),
    'PartitionSpec("data", None, None)',
)
_SPLIT = one_of(TEXT, each(count(0), "a list of numbers of layers"))
_PAIRS = each(
    Allowed(
        "a pair", lambda v: isinstance(v, list | tuple) and len(v) == 2 and all(map(TEXT.holds, v))
    ),
    "a list of pairs of names",
    "[(\"embed['table']\", \"head['table']\")]",
)


@dataclass(frozen=True)
class Stage:
    """A part of a model: `fn(params, x) -> y`, where x is what the earlier part returned.

    The first part of a pipeline is called as `fn(params, *inputs)`. `params` is a pytree of
    abstract arrays with shardings, of this part only.
    """

    fn: Callable[..., Any]
    params: Any = ()
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self, _FIELD, fn=FUNCTION, params=ANYTHING, name=TEXT)


@dataclass(frozen=True)
class Layers:
    """`count` equal layers, given once: `fn(params, x) -> x` and the parameters of one of them.

    `split` says how many each stage gets: "uniform" (as even as possible, earlier stages first),
    "balanced" (by estimated FLOPs, including the parts before and after), or a list of numbers.
    Layers of one stage run as a scan over stacked parameters. `ends(x) -> x` is called on what a
    stage's first layer takes and its last one returns, if the sharding inside a stage differs from
    the one between stages: what was sent in parts is gathered once, not in every layer.
    """

    fn: Callable[..., Any]
    params: Any
    count: int
    split: str | Sequence[int] = "uniform"
    name: str = "layers"
    ends: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            _FIELD,
            fn=FUNCTION,
            params=ANYTHING,
            count=count(1),
            split=_SPLIT,
            name=TEXT,
            ends=optional(FUNCTION),
        )


@dataclass(frozen=True)
class Pipeline:
    """A training or inference step whose stages lie along the mesh axis `axis`.

    The model comes in one of three forms:

    - `stages`: one `Stage` for each stage, or parts around one `Layers`, whose layers are split.
    - `model(params, *inputs)` with `params`: a whole JAX model, cut where `cut` says.
    - `model` as a `TorchStep`: a whole module, with its own inputs, loss and optimizer, cut in the
      same way.

    `cut` is "layers:8,16,24" (a new stage begins at these indices of the scan, list or module
    `layers`), "layers" (as even as can be), "layers:balanced" (by estimated FLOPs), or names of
    scopes or modules that begin a stage: "encoder/3,decoder". At most `crossing` computed values go
    from a stage to the next.

    `inputs` and `targets` are of the whole step; dimension 0 is the batch, which `microbatches`
    divides. The step trains if there is a `loss(output, *targets)` or an `optimizer`, or with
    `backward`, where the model's own output is the scalar loss.

    `schedule` is one of those that `flint schedules` lists; "" is "1f1b", or "forward" for
    inference. Each rank holds `chunks` stages: any number of "interleaved-1f1b", two of "zb-v" and
    "dualpipev", whose stages turn around at the last rank, one of the other schedules that train.
    `boundary` is the sharding of the values between stages, a PartitionSpec (by default their
    dimension 0 is sharded as that of the inputs). `tied` are pairs of parameter names that are one
    parameter in two stages ("embed['table']", "head['table']"): their gradients are summed.

    `optimizer` is "adamw", "sgd", or a pair `(init(params) -> state, update(params, gradients,
    state) -> (params, state))`, for any pytree of parameters. `clip_norm` clips the global norm of
    the gradients over all stages first. `gradient_dtype` is what gradients are accumulated and
    reduced in, by default their own. Where parameters are sharded over data (FSDP),
    `reshard_after_forward` gathers them again for each microbatch and pass; without it they are
    gathered once in a step.
    """

    stages: Sequence[Stage | Layers] = ()
    model: Any = None
    params: Any = None
    inputs: Sequence[Any] = ()
    targets: Sequence[Any] = ()
    loss: Callable[..., Any] | None = None
    backward: bool = False
    cut: str = ""
    crossing: int = 1
    microbatches: int = 1
    schedule: str = ""
    chunks: int = 1
    axis: str = "pipe"
    boundary: Any = None
    tied: Sequence[tuple[str, str]] = field(default_factory=tuple)
    optimizer: Any = None
    clip_norm: float | None = None
    gradient_dtype: str = ""
    reshard_after_forward: bool = True
    platform: str = "cuda"
    name: str = ""

    def __post_init__(self) -> None:
        part = instance("a part", (Stage, Layers))
        check_fields(
            self,
            _FIELD,
            stages=each(part, "a list or tuple of flint.Stage and flint.Layers"),
            model=ANYTHING,
            params=ANYTHING,
            inputs=SEQUENCE,
            targets=SEQUENCE,
            loss=optional(FUNCTION),
            backward=BOOLEAN,
            cut=TEXT,
            crossing=count(1),
            microbatches=count(1, MOST_MICROBATCHES),
            schedule=optional(TEXT),
            chunks=count(1, MOST_CHUNKS),
            axis=TEXT,
            boundary=_BOUNDARY,
            tied=_PAIRS,
            optimizer=ANYTHING,
            clip_norm=optional(POSITIVE),
            gradient_dtype=TEXT,
            reshard_after_forward=BOOLEAN,
            platform=TEXT,
            name=TEXT,
        )

    @property
    def trains(self) -> bool:
        """Whether the step has a backward pass."""
        if self.loss is not None or self.optimizer is not None or self.backward:
            return True
        return bool(getattr(self.model, "trains", False))
