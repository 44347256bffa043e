"""Bodies of a stage: its joint function, a port for each argument and result, lowered."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_stages.leaves import sharded
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_step.meshes import abstract_mesh, check_meshes
from flint.frontends.jax_step.program import lower_jax
from flint.ir.mesh import Mesh
from flint.passes.mlir import write_bytecode
from flint.steps.captured import Body, Captured, Port, Role

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct
    from jaxlib.mlir import ir


@dataclass(frozen=True, eq=False)
class BodyFunction:
    """`fn(*values)` returns a flat tuple of arrays.

    `arguments` are abstract arrays with their ports; `results` are ports with the sharding that
    the result must have, None for any. `donated` are the positions of arguments that results may
    take the memory of. `place` is where the user defined what it computes.
    """

    name: str
    fn: Callable[..., tuple[Any, ...]]
    arguments: tuple[tuple[Port, Any], ...]
    results: tuple[tuple[Port, Any], ...]
    donated: tuple[int, ...] = ()
    place: str | None = None


def capture_body(function: BodyFunction, mesh: Mesh, axis: str, platform: str, source: str) -> Body:
    """Trace and lower a body for `mesh`, of which `axis` is the pipeline's; `platform` is JAX's name. No argument or result is lost.

    Raises FlintError FL107, FL203 or FL205.
    """
    import jax

    _leave_out_own_frames()
    jitted = jax.jit(
        _named(function.fn, function.name),
        keep_unused=True,
        donate_argnums=function.donated,
        out_shardings=tuple(sharding for _, sharding in function.results),
    )
    args = tuple(struct for _, struct in function.arguments)
    ports = tuple(port for port, _ in function.arguments)
    abstract, name = abstract_mesh(mesh), function.name
    said: list[str] = []
    module = lower_jax(jitted, args, {}, abstract, platform, name, function.place, said)
    check_meshes(module, abstract, function.place)
    _name_arguments(module, ports)
    captured = Captured(write_bytecode(module), mesh, name, source, warnings=tuple(said))
    return Body(captured, axis, ports, tuple(port for port, _ in function.results))


@functools.cache
def _leave_out_own_frames() -> None:
    """Tell JAX that lines of this folder are not the user's: no operation comes from them."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of that name: JAX calls the module and the outermost scope by it."""

    def body(*values: Array) -> object:
        return function(*values)

    body.__name__ = body.__qualname__ = name
    return body


def _name_arguments(module: ir.Module, ports: tuple[Port, ...]) -> None:
    """Give the arguments of `main` the names that users know: of parameters and batch arguments."""
    from jaxlib.mlir import ir

    main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    arguments = main.regions[0].blocks[0].arguments
    assert len(arguments) == len(ports), f"{len(arguments)} arguments for {len(ports)} ports"
    with module.context:
        for argument, port in zip(arguments, ports, strict=True):
            argument.set_location(ir.Location.name(_shown(port)))


def _shown(port: Port) -> str:
    if port.role in (Role.PARAMETER, Role.BATCH, Role.STATE):
        return port.name
    if port.role is Role.GRADIENT:
        return f"gradient of {port.name}"
    return f"{port.role} {port.number}"


def step_function(stage: StageFunction, mesh: Mesh, trains: bool) -> BodyFunction:
    """The `step` body of a stage: its forward pass and, if `trains`, its backward pass."""
    return _joint(stage, mesh) if trains else _forward(stage)


def differentiable(values: Mapping[str, Any]) -> list[str]:
    """The names of the floating arrays among `values`: the others have no gradient."""
    return [name for name, value in values.items() if is_floating(value)]


def is_floating(value: Array | ShapeDtypeStruct) -> bool:
    """Whether a gradient can be taken with respect to an (abstract) array."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _arguments(stage: StageFunction) -> list[tuple[Port, Any]]:
    found = [(Port(Role.PARAMETER, n), leaf) for n, leaf in stage.params.items()]
    found += [(Port(Role.BATCH, n), leaf) for n, leaf in stage.batch.items()]
    return found + [(Port(Role.INPUT, number=i), leaf) for i, leaf in enumerate(stage.inputs)]


def _read(
    stage: StageFunction, values: tuple[Any, ...]
) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, ...], tuple[Any, ...]]:
    """Parameters, batch, inputs, and what comes after them, from flat values."""
    params = dict(zip(stage.params, values, strict=False))
    rest = values[len(params) :]
    batch = dict(zip(stage.batch, rest, strict=False))
    rest = rest[len(batch) :]
    number = len(stage.inputs)
    return params, batch, rest[:number], rest[number:]


def _constrained(values: tuple[Any, ...], like: tuple[Any, ...]) -> tuple[Any, ...]:
    import jax

    return tuple(
        v if s.sharding is None else jax.lax.with_sharding_constraint(v, s.sharding)
        for v, s in zip(values, like, strict=True)
    )


def _run(
    stage: StageFunction, params: dict[str, Any], batch: dict[str, Any], inputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The forward pass with the shardings of the boundaries."""
    return _constrained(stage.fn(params, batch, _constrained(inputs, stage.inputs)), stage.outputs)


def _forward(stage: StageFunction) -> BodyFunction:
    def step(*values: Array) -> tuple[Any, ...]:
        params, batch, inputs, _ = _read(stage, values)
        return _run(stage, params, batch, inputs)

    results = tuple(
        (Port(Role.OUTPUT, number=i), out.sharding) for i, out in enumerate(stage.outputs)
    )
    return BodyFunction("step", step, tuple(_arguments(stage)), results, place=stage.place)


def _joint(stage: StageFunction, mesh: Mesh) -> BodyFunction:
    """`step` with cotangents: gradients of floating parameters and inputs, sharded as those."""
    learned = differentiable(stage.params)
    moved = [i for i, leaf in enumerate(stage.inputs) if is_floating(leaf)]
    pulled = [i for i, leaf in enumerate(stage.outputs) if is_floating(leaf)]

    def step(*values: Array) -> tuple[Any, ...]:
        import jax

        params, batch, inputs, cotangents = _read(stage, values)

        def forward(chosen: dict[str, Any], given: tuple[Any, ...]) -> tuple[Any, Any]:
            every = list(inputs)
            for i, value in zip(moved, given, strict=True):
                every[i] = value
            kept = _constrained(tuple(chosen.values()), tuple(stage.params[n] for n in chosen))
            own = params | dict(zip(chosen, kept, strict=True))
            outputs = _run(stage, own, batch, tuple(every))
            rest = tuple(o for i, o in enumerate(outputs) if i not in pulled)
            return tuple(outputs[i] for i in pulled), rest

        chosen = {n: params[n] for n in learned}
        given = tuple(inputs[i] for i in moved)
        outputs, pull, rest = jax.vjp(forward, chosen, given, has_aux=True)
        gradients, input_gradients = pull(cotangents)
        merged = _merge(outputs, rest, pulled, len(stage.outputs))
        return (*merged, *input_gradients, *(gradients[n] for n in learned))

    arguments, results = _joint_ports(stage, mesh, learned, moved, pulled)
    return BodyFunction("step", step, arguments, results, place=stage.place)


def _merge(pulled: tuple[Any, ...], rest: tuple[Any, ...], at: list[int], count: int) -> list[Any]:
    """Outputs in their order again, from those that have a cotangent and the others."""
    first, second = iter(pulled), iter(rest)
    return [next(first) if i in at else next(second) for i in range(count)]


def _joint_ports(
    stage: StageFunction, mesh: Mesh, learned: list[str], moved: list[int], pulled: list[int]
) -> tuple[tuple[tuple[Port, Any], ...], tuple[tuple[Port, Any], ...]]:
    outputs = tuple(sharded(o, mesh) for o in stage.outputs)
    role = Role.LOSS if stage.is_last else Role.OUTPUT
    arguments = _arguments(stage)
    arguments += [(Port(Role.COTANGENT, number=i), outputs[i]) for i in pulled]
    results = [(Port(role, number=i), o.sharding) for i, o in enumerate(outputs)]
    results += [(Port(Role.INPUT_GRADIENT, number=i), stage.inputs[i].sharding) for i in moved]
    results += [(Port(Role.GRADIENT, n), stage.params[n].sharding) for n in learned]
    return tuple(arguments), tuple(results)
