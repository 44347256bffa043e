"""Where a program without shardings comes from: a JAX step, or a PyTorch module; traced on one device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.steps.entry import AnyStep
from flint.steps.step import Step, TorchStep
from flint.tools.explore.propose.blank import Blank, blank_of
from flint.tools.explore.propose.plan import (
    AtRest,
    PlanShardings,
    ShardingPlan,
    Spec,
    entry,
    partition_spec,
    shardings_of,
    used,
)
from flint.tools.explore.propose.sharded import named_leaves, other_kind, sharded

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr


class ProgramOrigin(Protocol):
    """A program and how a plan is put on it."""

    @property
    def blank(self) -> Blank:
        """The program without shardings."""
        ...

    @property
    def rests(self) -> Sequence[AtRest]:
        """What can be split while it is not used."""
        ...

    def keywords(self, plan: ShardingPlan) -> Mapping[str, Any]:
        """Keywords of `flint.sharded`."""
        ...

    def step(self, plan: ShardingPlan) -> AnyStep:
        """The step with a plan's shardings."""
        ...


def origin_of(step: AnyStep) -> ProgramOrigin:
    """The origin of a step. Raises FlintError FL936 for another kind, FL934 for one that has shardings."""
    if isinstance(step, TorchStep):
        if step.shardings or step.fsdp:
            raise _has_shardings("the module")
        return TorchOrigin(step)
    if not isinstance(step, Step):
        raise other_kind(step)
    return JaxOrigin(step)


def _has_shardings(what: str) -> FlintError:
    return FlintError(
        "FL934",
        f"{what} has shardings already",
        help="remove them for a proposal, or rank what an entry declares: flint explore",
    )


@dataclass(frozen=True)
class JaxOrigin:
    """A JAX function and its arguments."""

    of: Step
    rests: Sequence[AtRest] = tuple(AtRest)

    @cached_property
    def blank(self) -> Blank:
        """Raises FlintError FL203 where the function raises, FL934 for shardings, FL935 for side effects."""
        from jax.extend.core import ClosedJaxpr

        from flint.frontends.jax_step.callbacks import callbacks_of
        from flint.frontends.jax_step.equations import equations

        program, results = self._traced
        assert isinstance(program, ClosedJaxpr)
        if self.of.in_shardings is not None or any(map(_is_sharded, self._leaves)):
            raise _has_shardings("an argument")
        if any(
            e.primitive.name in ("sharding_constraint", "shard_map") for e in equations(program)
        ):
            raise _has_shardings("a value in the function")
        if said := callbacks_of(program):
            raise FlintError("FL935", f"the program has side effects: {said}",
                             help="remove them for a proposal: they bind a step to one process")  # fmt: skip
        return blank_of(program, tuple(named_leaves(self.of)), results)

    @property
    def _leaves(self) -> list[Any]:
        import jax

        found: list[Any] = jax.tree.leaves((tuple(self.of.args), dict(self.of.kwargs)))
        return found

    @property
    def _traced(self) -> tuple[ClosedJaxpr, tuple[str, ...]]:
        """The traced function, and the paths of its results."""
        import jax

        from flint.frontends.jax_step.meshes import abstract_mesh
        from flint.frontends.jax_step.program import definition
        from flint.frontends.jax_step.settings import capturing_on
        from flint.frontends.user_code import user_error

        step = self.of
        fixed = step.static_argnums
        with capturing_on(abstract_mesh(Mesh.parse("data=1"))):
            try:
                found, out = jax.make_jaxpr(step.fn, static_argnums=fixed, return_shape=True)(
                    *step.args, **step.kwargs
                )
            except Exception as error:
                raise user_error(error, "tracing the step", definition(step.fn)) from error
        paths, _ = jax.tree_util.tree_flatten_with_path(out)
        return found, tuple(jax.tree_util.keystr(path) for path, _ in paths)

    def keywords(self, plan: ShardingPlan) -> Mapping[str, Any]:
        """Arguments and constraints as `PartitionSpec`s."""
        found = self.shardings(plan)
        named = zip(self.blank.names, found.arguments, strict=True)
        arguments = {n: partition_spec(s) for n, s in named}
        return {
            "arguments": arguments,
            "results": {n: partition_spec(s) for n, s in found.results.items()},
            "constraints": {k: partition_spec(s) for k, s in found.constraints.items()},
        }

    def shardings(self, plan: ShardingPlan) -> PlanShardings:
        """What the plan says of arguments and values."""
        return shardings_of(plan, self.blank)

    def step(self, plan: ShardingPlan) -> AnyStep:
        """Raises FlintError as `flint.sharded` does."""
        return sharded(self.of, Mesh.parse(dict(plan.axes)), **self.keywords(plan))


def _is_sharded(leaf: Any) -> bool:
    from jax.sharding import NamedSharding, PartitionSpec

    from flint.frontends.jax_step.meshes import own_sharding

    found = own_sharding(leaf)
    return isinstance(found, NamedSharding | PartitionSpec) and any(getattr(found, "spec", found))


@dataclass(frozen=True)
class TorchOrigin:
    """A PyTorch module, its loss and its optimizer. Its state is split with its weights alone."""

    of: TorchStep
    rests: Sequence[AtRest] = (AtRest.NOTHING, AtRest.ALL)

    @cached_property
    def blank(self) -> Blank:
        """Raises what exporting the module raises."""
        import jax

        from flint.frontends.jax_step.meshes import abstract_mesh, as_auto
        from flint.frontends.jax_step.settings import capturing_on
        from flint.frontends.torch_export import require_torch

        require_torch()
        from flint.frontends.torch_graph.program import torch_program

        mesh = Mesh.parse("data=1")
        program = torch_program(self.of, mesh)
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.arguments]
        with capturing_on(abstract_mesh(as_auto(mesh))), jax.enable_x64(True):
            traced = jax.make_jaxpr(program.function)(*shapes)
        return blank_of(traced, tuple(a.name for a in program.arguments))

    def keywords(self, plan: ShardingPlan) -> Mapping[str, Any]:
        """Placements by globs, in which numbers of layers that are alike are stars, and `fsdp`."""
        blank = self.blank
        exact: dict[str, Spec] = {}
        for name, dims in zip(blank.names, blank.reading.arguments, strict=True):
            spec = used(plan, blank, dims)
            if not name.startswith("optimizer.") and any(spec):
                exact[name] = spec
        globs: dict[str, set[Spec]] = {}
        for name in blank.names:
            globs.setdefault(_starred(name), set()).add(exact.get(name, ()))
        found: dict[str, Spec] = {}
        for name, spec in exact.items():
            glob = _starred(name)
            found[glob if len(globs[glob]) == 1 else name] = spec
        arguments = {n: tuple(map(entry, spec)) for n, spec in found.items()}
        fsdp = plan.rest_axes if plan.rest is AtRest.ALL else ()
        return {"arguments": arguments, "fsdp": fsdp}

    def step(self, plan: ShardingPlan) -> AnyStep:
        """The step with `shardings` and `fsdp`."""
        return sharded(self.of, Mesh.parse(dict(plan.axes)), **self.keywords(plan))


def _starred(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
