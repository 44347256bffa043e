"""What a model file hands to Flint: a step, and `entry` to mark the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flint.io.fields import (
    ANYTHING,
    BOOLEAN,
    FUNCTION,
    NAMED,
    PLACEMENTS,
    POSITIONS,
    POSITIVE,
    SEQUENCE,
    SHARDINGS,
    TEXT,
    TEXTS,
    TRIP_COUNTS,
    Allowed,
    check_fields,
    count,
    one_of,
    optional,
)

#: A step that is handed over with a field that holds something else.
_FIELD = "FL219"
_ARGUMENTS = Allowed(
    SEQUENCE.words, SEQUENCE.holds, "write args=(x,), with a comma, for one argument"
)
_MODULE = Allowed(
    "a torch.nn.Module",
    lambda v: callable(v) and hasattr(v, "named_parameters") and not isinstance(v, type),
)


@dataclass(frozen=True)
class Step:
    """A function and the abstract arguments to trace it with.

    `args` and `kwargs` are pytrees of `jax.ShapeDtypeStruct` (arrays also work: only their shape
    and dtype are used). Shardings come with the arguments or as `in_shardings`, a pytree prefix of
    `args` of `NamedSharding` or `PartitionSpec`. `trip_counts` names loops whose bound is not
    static: `{"decode_loop": 128}`. `donate_argnums` and `static_argnums` are what `jax.jit` takes:
    a position or several, negative ones from the end.

    Raises FlintError FL219 for a field that holds something else.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_shardings: Any = None
    out_shardings: Any = None
    donate_argnums: int | Sequence[int] = ()
    static_argnums: int | Sequence[int] = ()
    trip_counts: Mapping[str, int] = field(default_factory=dict)
    platform: str = "cuda"
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(
            self,
            _FIELD,
            fn=FUNCTION,
            args=_ARGUMENTS,
            kwargs=NAMED,
            in_shardings=SHARDINGS,
            out_shardings=SHARDINGS,
            donate_argnums=POSITIONS,
            static_argnums=POSITIONS,
            trip_counts=TRIP_COUNTS,
            platform=TEXT,
            name=TEXT,
        )


def _made_at() -> str | None:
    from flint.io.user_places import calling_place  # asks for the folders of Python

    return calling_place()


@dataclass(frozen=True)
class TorchStep:
    """A PyTorch module written for one device, what a step does with it, and how it is sharded.

    `args` and `kwargs` are tensors on the `meta` device (for others, only shape and dtype are
    used). The step is inference unless `loss`, `optimizer` or `backward` says otherwise: then it is
    the forward pass, `loss(output, *loss_args)` (without `loss`, the output itself, or its
    `.loss`), the backward pass to the parameters that require gradients, and the optimizer:
    "adamw", "sgd", a `torch.optim.Optimizer` over parameters of the module, or a function from a
    list of parameters to one. `clip_norm` clips the global norm of the gradients first.

    `shardings` maps globs over parameter, buffer and argument names (`layers.*.wq.weight`) to
    placements: a tuple with one entry per dimension (an axis, a tuple of axes or None), DTensor
    placements with one entry per mesh axis, or a HuggingFace tensor-parallel plan under the key
    "tp_plan" or ("tp_plan", axis). `activations` maps globs over module paths to placements of what
    the modules return. `fsdp` names the axes over which parameters, gradients and optimizer state
    are sharded at rest and gathered at use (ZeRO-3).

    Raises FlintError FL219 for a field that holds something else.
    """

    module: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    loss_args: Sequence[Any] = ()
    backward: bool = False
    optimizer: Any = None
    clip_norm: float | None = None
    shardings: Mapping[str, Any] | Mapping[str | tuple[str, str], Any] = field(default_factory=dict)
    activations: Mapping[str, Any] = field(default_factory=dict)
    fsdp: str | Sequence[str] = ()
    platform: str = "cuda"
    name: str = ""
    #: The line of the user's file that made the step, for errors of what it was given.
    made_at: str | None = field(default_factory=_made_at, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(
            self,
            _FIELD,
            module=_MODULE,
            args=_ARGUMENTS,
            kwargs=NAMED,
            loss=optional(FUNCTION),
            loss_args=SEQUENCE,
            backward=BOOLEAN,
            optimizer=ANYTHING,
            clip_norm=optional(POSITIVE),
            shardings=PLACEMENTS,
            activations=NAMED,
            fsdp=one_of(TEXT, TEXTS),
            platform=TEXT,
            name=TEXT,
        )

    @property
    def trains(self) -> bool:
        """Whether the step has a backward pass."""
        return self.backward or self.loss is not None or self.optimizer is not None


@dataclass(frozen=True)
class WorldStep:
    """A function that trains or serves as one rank of a distributed PyTorch program.

    `fn(*args, **kwargs)` does what a torchrun script does: `init_process_group`,
    `init_device_mesh`, steps. `hints` gives values that depend on data, see
    docs/torch-distributed.md. `steps` is the number of the optimizer step that ends the recorded
    one: 2 skips the first, which sets up. `chip` names the cluster whose GPU the program sees.

    Raises FlintError FL219 for a field that holds something else.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 2
    name: str = ""
    chip: str = "h100"

    def __post_init__(self) -> None:
        check_fields(
            self,
            _FIELD,
            fn=FUNCTION,
            args=_ARGUMENTS,
            kwargs=NAMED,
            hints=NAMED,
            steps=count(0),
            name=TEXT,
            chip=TEXT,
        )
