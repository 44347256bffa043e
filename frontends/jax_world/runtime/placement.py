"""Where the results of a jitted call are: as it says, or as Shardy decides it for the whole call."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_world.calls import Call
from flint.frontends.jax_world.runtime.arrays import Placed
from flint.frontends.jax_world.runtime.lowering import lowered
from flint.passes import jax_private
from flint.passes.mlir import functions_of, make_context, write_bytecode
from flint.passes.partition.prepare.attention import attach_attention_rules
from flint.passes.partition.shardy_pipeline import propagated_module

if TYPE_CHECKING:
    from jaxlib.mlir import ir


class Placement:
    """Finds out where results of calls are. Devices are those of `platform`."""

    def __init__(self, platform: str) -> None:
        self._platform = platform
        self._inside: dict[int, tuple[Any, list[Any]]] = {}
        self._decided: dict[Any, list[Any]] = {}

    def of(self, call: Call) -> tuple[list[Any], list[Callable[[], Placed]]]:
        """For each result its mesh, None on one device, and where it is.

        Results whose sharding the call does not say are found out when one of them is asked.
        """
        parameters = call.parameters
        _check_devices(call)
        said = [
            _said(s, a) for s, a in zip(parameters["out_shardings"], _results(call), strict=True)
        ]
        mesh = self._mesh(call, said)
        if mesh is None:
            placed = self._one_device(call, said)
            return [None] * len(said), [lambda p=p: p for p in placed]  # type: ignore[misc]
        meshes = [_typed_as(mesh, a) for a in _results(call)]
        late = _Late(call, list(map(_concrete, said, meshes)), meshes, self._decide)
        return meshes, [lambda i=i: late.placed(i) for i in range(len(said))]  # type: ignore[misc]

    def _mesh(self, call: Call, said: Sequence[Any]) -> Any:
        """The mesh of several devices that a call runs on, or None."""
        from jax.sharding import Mesh

        shardings = [a.sharding for a in call.arguments if _is_put(a)]
        inside = self._inside_of(call.parameters["jaxpr"])
        meshes = [getattr(jax_private.key_bits(a), "mesh_before", None) for a in call.arguments]
        found = [
            *(m for m in meshes if m is not None),
            call.parameters["ctx_mesh"],
            *(getattr(s, "mesh", None) for s in (*shardings, *said)),
            *(getattr(s, "mesh", None) for s in call.parameters["in_shardings"]),
            *(getattr(s, "mesh", None) for s in inside),
        ]
        concrete = [m for m in found if isinstance(m, Mesh) and not m.empty]
        return next((m for m in concrete if m.size > 1), None)

    def _inside_of(self, program: Any) -> list[Any]:
        jaxpr = getattr(program, "jaxpr", program)
        kept = self._inside.get(id(jaxpr))
        if kept is None:
            found = jax_private.placing().get_intermediate_shardings(jaxpr)
            kept = self._inside[id(jaxpr)] = (jaxpr, [s for s, _ in found])
        return kept[1]

    def _one_device(self, call: Call, said: Sequence[Any]) -> list[Placed]:
        from jax.sharding import Sharding, SingleDeviceSharding

        committed = [a for a in call.arguments if _is_put(a) and a._committed]
        default = jax_private.results().get_default_device()
        asked = [s for s in (*call.parameters["in_shardings"], *said) if isinstance(s, Sharding)]
        devices = [next(iter(s.device_set)) for s in (*(a.sharding for a in committed), *asked)]
        where = SingleDeviceSharding(devices[0] if devices else default)
        return [Placed(s if s is not None else where, bool(devices)) for s in said]

    def _decide(self, call: Call) -> list[Any]:
        """Specs of all results, as the partitioner propagates them through the call."""
        key = (
            id(call.parameters["jaxpr"]),
            *(str(getattr(a, "sharding", "")) for a in call.arguments),
        )
        if key not in self._decided:
            self._decided[key] = result_specs(lowered(call, self._platform))
        return self._decided[key]


def _check_devices(call: Call) -> None:
    """Raise ValueError as JAX does where arguments were put on different devices."""
    given = zip(call.arguments, call.parameters["in_shardings"], strict=True)
    free = [a for a, s in given if not hasattr(s, "memory_kind") and _is_put(a)]
    found: dict[Any, Any] = {}
    for argument in free:
        if argument._committed:
            sharding = argument.sharding
            found.setdefault(getattr(sharding, "mesh", sharding), argument)
    if len(found) > 1 and len({frozenset(a.sharding.device_set) for a in found.values()}) > 1:
        one, other = [f"{a.aval.str_short()} on {_shown(a.sharding)}" for a in found.values()][:2]
        raise ValueError(
            "Received incompatible devices for jitted computation. Got arguments of "
            f"{call.parameters['name']}: {one} and {other}"
        )


def _shown(sharding: Any) -> str:
    count = sharding.num_devices
    return f"{count} devices" if count > 1 else str(next(iter(sharding.device_set)))


class _Late:
    """Results of one call on a mesh; the partitioner is asked when one of them has to be known."""

    def __init__(
        self, call: Call, said: list[Any], meshes: list[Any], decide: Callable[[Call], list[Any]]
    ) -> None:
        self._call: Call | None = call
        self._said = said
        self._meshes = meshes
        self._decide = decide

    def placed(self, index: int) -> Placed:
        from jax.sharding import NamedSharding, PartitionSpec

        if self._said[index] is None and not _results_shape(self._call, index):
            return Placed(NamedSharding(self._meshes[index], PartitionSpec()), committed=True)
        if self._said[index] is None:
            assert self._call is not None, "a call is kept until its results are placed"
            specs = self._decide(self._call)
            self._said = [
                NamedSharding(mesh, PartitionSpec(*spec)) if said is None else said
                for said, spec, mesh in zip(self._said, specs, self._meshes, strict=True)
            ]
            self._call = None
        return Placed(self._said[index], committed=True)


def _results_shape(call: Call | None, index: int) -> tuple[int, ...]:
    return tuple(_results(call)[index].shape) if call is not None else ()


def _results(call: Call) -> list[Any]:
    program = call.parameters["jaxpr"]
    return [getattr(v, "aval", None) for v in getattr(program, "jaxpr", program).outvars]


def _is_put(argument: Any) -> bool:
    """Whether an argument is an array that somebody knows the place of."""
    return bool(getattr(jax_private.key_bits(argument), "is_placed", False))


def _said(sharding: Any, aval: Any) -> Any:
    """The sharding that a call gives a result, by its options or its type, or None."""
    from jax.sharding import Sharding

    if isinstance(sharding, Sharding):
        return sharding
    typed = getattr(aval, "sharding", None)
    mesh = getattr(typed, "mesh", None)
    if mesh is not None and not mesh.empty and mesh.are_all_axes_explicit:
        return typed
    return None


def _typed_as(mesh: Any, aval: Any) -> Any:
    """`mesh` with the types of axes that a result's type has, or where it has none the context.

    `jax.sharding.auto_axes` and `explicit_axes` change them for what they run.
    """
    from jax.sharding import Mesh, get_abstract_mesh

    own = getattr(getattr(aval, "sharding", None), "mesh", None)
    for typed in (own, get_abstract_mesh()):
        if typed is not None and typed.axis_names == mesh.axis_names:
            return Mesh(mesh.devices, mesh.axis_names, axis_types=typed.axis_types)
    return mesh


def _concrete(sharding: Any, mesh: Any) -> Any:
    """A sharding over an abstract mesh, over the devices of `mesh`."""
    from jax.sharding import AbstractMesh, NamedSharding

    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    return sharding


# How Shardy shards the results of a module.

#: For each dimension the axes that shard it, None for none.
Spec = tuple[tuple[str, ...] | None, ...]


def result_specs(module: ir.Module) -> list[Spec]:
    """The axes of each dimension of each result of `main`, after propagation.

    A part of an axis (Shardy's sub-axes) shards nothing here: JAX's shardings have no name for it.
    Raises FlintError FL402 with the compiler's diagnostic.
    """
    from jaxlib.mlir import ir

    attach_attention_rules(module)
    written = write_bytecode(module)
    silent = contextlib.redirect_stderr(io.StringIO())  # a worker says there what it does
    with make_context(), silent:
        main = functions_of(propagated_module(written))["main"]
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        if "res_attrs" not in main.attributes:
            return [()] * len(kind.results)
        return [_spec(a) for a in main.attributes["res_attrs"]]


def _spec(attributes: Any) -> Spec:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    found = ir.DictAttr(attributes) if attributes else {}
    if "sdy.sharding" not in found:
        return ()
    sharding = sdy.TensorShardingAttr(found["sdy.sharding"])
    axes = [_axes(d) for d in sharding.dimension_shardings]
    while axes and axes[-1] is None:  # as JAX itself shortens them
        axes.pop()
    return tuple(axes)


def _axes(dimension: Any) -> tuple[str, ...] | None:
    from jaxlib.mlir.dialects import sdy

    names = []
    for attribute in sdy.DimensionShardingAttr(dimension).axes:
        axis = sdy.AxisRefAttr(attribute)
        if axis.sub_axis_info is not None:
            break
        names.append(str(axis.name))
    return tuple(names) or None
