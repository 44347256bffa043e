"""What a model file hands to Flint: a step, and `entry` to mark the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flint.pipeline import Pipeline
from flint.pools import Disaggregated

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flint_entry__"


@dataclass(frozen=True)
class Step:
    """A function and the abstract arguments to trace it with.

    `args` and `kwargs` are pytrees of `jax.ShapeDtypeStruct` (arrays do too: only their shape and
    dtype are used). Shardings come with the arguments or as `in_shardings`, a pytree prefix of
    `args` of `NamedSharding` or `PartitionSpec`. `trip_counts` names loops whose bound is not
    static: `{"decode_loop": 128}`.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_shardings: Any = None
    out_shardings: Any = None
    donate_argnums: Sequence[int] = ()
    static_argnums: Sequence[int] = ()
    trip_counts: Mapping[str, int] = field(default_factory=dict)
    platform: str = "cuda"
    name: str = ""


@dataclass(frozen=True)
class TorchStep:
    """A PyTorch module written for one device, what a step does with it, and how it is sharded.

    `args` and `kwargs` are tensors on the `meta` device (of others, only shape and dtype are used).
    The step is inference unless `loss`, `optimizer` or `backward` says otherwise: then it is the
    forward pass, `loss(output, *loss_args)` (without `loss`, the output itself, or its `.loss`),
    the backward pass to the parameters that require gradients, and the optimizer: "adamw", "sgd",
    a `torch.optim.Optimizer` over parameters of the module, or a function from a list of parameters
    to one. `clip_norm` clips the global norm of the gradients first.

    `shardings` maps globs over parameter, buffer and argument names (`layers.*.wq.weight`) to
    placements: a tuple with one entry per dimension (an axis, a tuple of axes or None), DTensor
    placements with one entry per mesh axis, or a HuggingFace tensor-parallel plan under the key
    "tp_plan". `activations` maps globs over module paths to placements of what the modules
    return. `fsdp` names the axes over which parameters, gradients and optimizer state are sharded
    at rest and gathered at use (ZeRO-3).
    """

    module: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    loss_args: Sequence[Any] = ()
    backward: bool = False
    optimizer: Any = None
    clip_norm: float | None = None
    shardings: Mapping[str, Any] = field(default_factory=dict)
    activations: Mapping[str, Any] = field(default_factory=dict)
    fsdp: str | Sequence[str] = ()
    platform: str = "cuda"
    name: str = ""

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
    one: 2 leaves out the first, which sets up.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 2
    name: str = ""


#: Whatever an entry may return.
AnyStep = Step | TorchStep | WorldStep | Pipeline | Disaggregated


@dataclass(frozen=True)
class EntryMark:
    """What `entry` leaves on a function: the names of the mesh axes that it expects.

    `default` marks the entry that is meant where a file has several and none is named.
    """

    axes: tuple[str, ...]
    default: bool = False


def entry(*, axes: Sequence[str] = (), default: bool = False) -> Callable[[F], F]:
    """Mark a function of a mesh that returns a step, so that `flint capture FILE` finds it.

    The function receives a `jax.sharding.AbstractMesh` (its axes named `axes`) and the options
    given with `--set NAME=VALUE` as keyword arguments. It returns a `Step`, `TorchStep`,
    `WorldStep`, `Pipeline` or `Disaggregated`. Of several entries in a file the one marked `default` is taken where none is
    named.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, EntryMark(tuple(axes), default))
        return function

    return mark


def entry_mark(function: object) -> EntryMark | None:
    """The mark that `entry` left on `function`, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, EntryMark) else None
