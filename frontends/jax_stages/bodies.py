"""Functions of a stage with a port for each argument and result, lowered for the whole mesh."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flint.frontends.jax_step.meshes import check_meshes
from flint.frontends.jax_step.program import abstract_mesh, bytecode, lower_jax
from flint.ir.mesh import Mesh
from flint.steps.captured import Body, Captured, Port, Role


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


def capture_body(function: BodyFunction, mesh: Mesh, platform: str, source: str) -> Body:
    """Trace and lower a body for `mesh`; `platform` is JAX's name. No argument or result is lost.

    Raises FlintError FL107, FL203, FL204 or FL205.
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
    module = lower_jax(jitted, args, {}, abstract, platform, name, function.place)
    check_meshes(module, abstract, function.place)
    _name_arguments(module, ports)
    captured = Captured(bytecode(module), mesh, name, source)
    return Body(captured, ports, tuple(port for port, _ in function.results))


@functools.cache
def _leave_out_own_frames() -> None:
    """Tell JAX that lines of this folder are not the user's: no operation comes from them."""
    from jax.extend import source_info_util

    source_info_util.register_exclusion(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of that name: JAX calls the module and the outermost scope by it."""

    def body(*values: Any) -> Any:
        return function(*values)

    body.__name__ = body.__qualname__ = name
    return body


def _name_arguments(module: Any, ports: tuple[Port, ...]) -> None:
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
