"""What the optimizer does with the parameters of one stage, once in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_graph.optimizer.update import (
    CLIP_SCOPE,
    Update,
    scaled_gradients,
    squared_norm,
)
from flint.frontends.torch_graph.program import Argument, scoped, state_argument
from flint.frontends.torch_graph.shardings.tensors import Shardings
from flint.frontends.torch_graph.stages.step import PortedProgram, ported
from flint.steps.captured import Port, Role

if TYPE_CHECKING:
    from jax import Array


_SQUARED_NORM = Port(Role.SQUARED_NORM)


@dataclass(frozen=True)
class StageOptimizer:
    """The optimizer of a whole model, and what it needs to know to be cut into stages.

    `clip_norm` is the largest norm of all gradients, `gradient_dtype` what gradients were added up
    in ("" is their own).
    """

    update: Update
    shardings: Shardings
    clip_norm: float | None = None
    gradient_dtype: str = ""

    def gradient(self, parameter: Argument) -> tuple[Port, Argument]:
        """The accumulated gradient of a parameter, as an argument."""
        name, shape = parameter.name, parameter.shape
        dtype = self.gradient_dtype or parameter.dtype
        spec = self.shardings.gradient(name, shape)
        return Port(Role.GRADIENT, name), Argument(f"gradient.{name}", shape, dtype, spec)

    def norm_program(self, trained: Sequence[Argument]) -> PortedProgram:
        """The sum of the squares of the gradients of `trained`: zero, if there are none."""
        import jax

        gradients = [self.gradient(p) for p in trained]
        specs = {port.name: argument.spec for port, argument in gradients}

        def norm(*arrays: Array) -> tuple[Array]:
            with jax.named_scope(CLIP_SCOPE):
                return (squared_norm(dict(zip(specs, arrays, strict=True)), specs),)

        return ported(norm, gradients, [_SQUARED_NORM])

    def update_program(self, trained: Sequence[Argument]) -> PortedProgram | None:
        """New values of those of `trained` that the optimizer holds, and its state; or None."""
        held = [replace(p, donated=True) for p in trained if p.name in self.update.steps]
        if not held:
            return None
        steps = {p.name: scoped(p.name, self.update.steps[p.name]) for p in held}
        states = [s for p in held for s in self._states(p.name)]
        arguments = [
            *((Port(Role.PARAMETER, p.name), p) for p in held),
            *map(self.gradient, held),
            *states,
            *self._norm_argument(),
        ]
        counts = {p.name: len(self.update.state_specs[p.name]) for p in held}

        def update(*arrays: Array) -> tuple[Any, ...]:
            count = len(held)
            gradients = self._clipped(held, arrays[count : 2 * count], arrays[-1])
            parameters, own = [], []
            rest = iter(arrays[2 * count :])
            for parameter, array in zip(held, arrays, strict=False):
                state = [next(rest) for _ in range(counts[parameter.name])]
                new, *kept = steps[parameter.name](array, gradients[parameter.name], *state)
                parameters.append(new)
                own += kept
            return (*parameters, *own)

        results = [*(Port(Role.PARAMETER, p.name) for p in held), *(port for port, _ in states)]
        return ported(update, arguments, results)

    def _states(self, name: str) -> list[tuple[Port, Argument]]:
        return [
            (Port(Role.STATE, f"{name}.{key}"), state_argument(name, key, spec, self.shardings))
            for key, spec in self.update.state_specs[name].items()
        ]

    def _norm_argument(self) -> list[tuple[Port, Argument]]:
        from jax.sharding import PartitionSpec

        if self.clip_norm is None:
            return []
        return [(_SQUARED_NORM, Argument("squared_norm", (), "float32", PartitionSpec()))]

    def _clipped(
        self, held: Sequence[Argument], gradients: Sequence[Any], total: Any
    ) -> Mapping[str, Any]:
        """Gradients by name, clipped, in the type of their parameters as PyTorch wants them."""
        import jax

        found = {p.name: g for p, g in zip(held, gradients, strict=True)}
        if self.clip_norm is not None:
            with jax.named_scope(CLIP_SCOPE):
                found = scaled_gradients(found, total, self.clip_norm)
        with jax.named_scope("@optimizer"):
            return {p.name: found[p.name].astype(p.dtype) for p in held}
