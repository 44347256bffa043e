"""JAX functions in: traced and lowered for an abstract mesh, with no device and no data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.errors import FlintError
from flint.frontends.jax_step.callbacks import callbacks_of
from flint.frontends.jax_step.equations import refuse_huge_constants
from flint.frontends.jax_step.forms import Handed, handed, is_pmapped
from flint.frontends.jax_step.gpu_kernels import lowering_options
from flint.frontends.jax_step.meshes import (
    abstract_mesh,
    as_auto,
    check_meshes,
    import_jax,
    own_sharding,
    with_mesh_help,
    with_types_of,
)
from flint.frontends.jax_step.pretended import asking_for, pmapped_over
from flint.frontends.jax_step.settings import capturing_on, platform_name
from flint.frontends.jax_step.specs import check_axes, check_spec, show_array, show_spec
from flint.frontends.jax_step.stages import mark_donated, stage_of
from flint.frontends.user_code import user_error
from flint.io.fields import shown
from flint.ir.axis_types import AxisType
from flint.ir.mesh import Mesh
from flint.log import stage
from flint.passes.mlir import write_bytecode
from flint.passes.partition.prepare.attention import attach_attention_rules
from flint.passes.partition.prepare.gspmd import refuse_gspmd
from flint.steps.captured import Captured
from flint.steps.step import Step
from flint.text import plural

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    from jax.stages import Wrapped
    from jaxlib.mlir import ir


def capture_jax(step: Step, mesh: Mesh, source: str = "") -> Captured:
    """Trace and lower a step for `mesh`. Nothing of it is executed.

    Raises FlintError: FL102 (unknown axis), FL103 (a sharding that does not divide), FL104 (an
    argument that is not an array), FL203 (the function raised), FL205 (a huge
    closed-over array), FL206 (jax is not installed), FL106 (an axis twice in one sharding),
    FL207 (unknown platform), FL208 (a symbolic dimension), FL107 (shardings that are
    not over this mesh, or not Shardy's).
    """
    form = handed(step)
    mesh = with_types_of(mesh, form.step)
    if is_pmapped(step.fn):
        return _capture_pmapped(mesh, form, source)
    if AxisType.PERHAPS_EXPLICIT not in mesh.axis_types:
        return _capture_on(mesh, form, source)
    explicit = replace(mesh, axis_types=(AxisType.EXPLICIT,) * len(mesh.names))
    try:
        return _capture_on(explicit, form, source)
    except FlintError as error:
        if error.code != "FL203":
            raise
        try:
            found = _capture_on(as_auto(mesh), form, source)
        except FlintError:
            raise error from None
        return replace(found, warnings=(*found.warnings, _taken_as_auto(error)))


def _taken_as_auto(error: FlintError) -> str:
    where = f" ({error.place.split('  ')[0]})" if error.place else ""
    return (
        "the axes of the mesh are explicit, JAX's default, and with explicit axes "
        f"{error.message.rstrip('.')}{where}: captured with axes of type Auto; write "
        "axis_types=(AxisType.Auto,) * n where the mesh is made"
    )


def _capture_pmapped(mesh: Mesh, form: Handed, source: str) -> Captured:
    """A pmapped function is one axis of devices, and it says what that is called."""
    with pmapped_over(mesh) as over:
        try:
            return _capture_on(mesh, form, source)
        except FlintError:
            if over.axis in ("", *mesh.names):
                raise
        return _capture_on(Mesh.parse({over.axis: mesh.size}), form, source)


def _capture_on(mesh: Mesh, form: Handed, source: str) -> Captured:
    step = form.step
    platform = platform_name(step.platform)
    abstract = abstract_mesh(mesh)
    place = definition(step.fn)
    args, kwargs = _abstract_arguments(form, abstract, mesh, place)
    function = _jitted(form, abstract, mesh, place)
    name = step.name or getattr(step.fn, "__name__", "step")
    asked: list[str] = []
    module = lower_jax(
        function, args, kwargs, abstract, platform, name, place, asked, is_whole=form.is_whole
    )
    warnings = (*check_meshes(module, abstract, place), *asked)
    written = write_bytecode(module)
    refuse_gspmd(module, written, "FL107", name)
    return Captured(written, mesh, name, source, step.trip_counts, warnings)


def lower_jax(
    function: Wrapped,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    abstract: AbstractMesh,
    platform: str,
    name: str,
    place: str | None,
    warnings: list[str] | None = None,
    *,
    is_whole: bool = False,
) -> ir.Module:
    """The StableHLO module of a jitted function, ready for a partitioner.

    `args` and `kwargs` are abstract arrays on the mesh `abstract`, `platform` is JAX's name of it.
    `warnings` gets sentences for the user. If the function `is_whole`, what jitted functions in it donate of its arguments, it donates.
    Raises FlintError FL104, FL203 or FL205.
    """
    with capturing_on(abstract):
        try:
            asked = asking_for(platform, abstract.size, [] if warnings is None else warnings)
            with stage("trace"), asked:
                traced = stage_of(function.trace(*args, **kwargs))
        except FlintError:
            raise
        except (Exception, SystemExit) as error:
            raise _trace_error(error, name, place, abstract) from error
        called = callbacks_of(traced.jaxpr)
        if called and warnings is not None:
            warnings.append(called)
        refuse_huge_constants(traced.jaxpr, place)
        options = lowering_options(platform, traced.jaxpr)
        try:
            with stage("lower"):
                lowered = traced.lower(**options)
        except (Exception, SystemExit) as error:
            raise user_error(error, f"lowering {name} for {platform}", place) from error
        module = lowered.compiler_ir("stablehlo")
    if is_whole:
        mark_donated(module, traced.jaxpr)
    attach_attention_rules(module)
    return module


def _trace_error(
    error: BaseException, name: str, place: str | None, abstract: AbstractMesh
) -> FlintError:
    first = str(error).partition("\n")[0]
    found = re.search(
        r"value is of type (.*) and was passed to the function at path (\S+?)\.", first
    )
    if found is not None:
        return FlintError(
            "FL104",
            f"argument {found[2]} is {found[1]}, which the jitted {name} does not take: {first}",
            place=place,
            help="name it in static_argnums or static_argnames of its jit",
        )
    return with_mesh_help(user_error(error, f"tracing {name}", place), abstract)


def definition(function: Callable[..., object]) -> str | None:
    """`file.py:line` where the user defined a function, or None."""
    import inspect
    from functools import partial

    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


# arguments ------------------------------------------------------------------------------------


def _abstract_arguments(
    form: Handed, abstract: AbstractMesh, mesh: Mesh, place: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as ShapeDtypeStruct with shardings on `abstract`; static ones stay as they are."""
    step = form.step
    static = set(positions(step.static_argnums, len(step.args), "static_argnums", place))
    names = argument_names(step.fn, len(step.args))
    shardings = _in_shardings(step)

    def convert(value: object, prefix: str, sharding: object) -> object:
        return abstract_tree(value, prefix, sharding, abstract, mesh, place, form.is_jitted)

    args = tuple(
        value if i in static else convert(value, names[i], shardings[i])
        for i, value in enumerate(step.args)
    )
    return args, {k: convert(v, k, None) for k, v in step.kwargs.items()}


def argument_names(function: Callable[..., object], count: int) -> list[str]:
    """What a function calls its first `count` positional arguments."""
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    names += [f"{rest}[{i - len(names)}]" for i in range(len(names), count)]
    return names[:count]


def positions(
    given: int | Sequence[int], arguments: int, field: str, place: str | None
) -> tuple[int, ...]:
    """`donate_argnums` or `static_argnums` as JAX reads them: one or several, negative from the end.

    Raises FlintError FL219 for a position that none of the `arguments` has.
    """
    found = []
    for position in (given,) if isinstance(given, int) else given:
        if not -arguments <= position < arguments:
            raise FlintError(
                "FL219",
                f"{field} has {position}, but the step has {plural(arguments, 'positional argument')}",
                place=place,
                help="positions count from 0; keyword arguments have none",
            )
        found.append(position % arguments)
    return tuple(dict.fromkeys(found))


def _in_shardings(step: Step) -> list[Any]:
    given = step.in_shardings
    if given is None or not isinstance(given, list | tuple) or _is_sharding(given):
        return [given] * len(step.args)
    if len(given) != len(step.args):
        raise FlintError(
            "FL104",
            f"in_shardings has {len(given)} entries for {len(step.args)} arguments",
            place=definition(step.fn),
            help="give one entry per positional argument, None for no sharding",
        )
    return list(given)


def _is_sharding(value: object) -> bool:
    jax = import_jax()
    return isinstance(value, jax.sharding.Sharding | jax.sharding.PartitionSpec)


def abstract_tree(
    value: object,
    prefix: str,
    sharding: object,
    abstract: AbstractMesh,
    mesh: Mesh,
    place: str | None,
    may_be_static: bool = False,
) -> Any:
    """A pytree of arrays as ShapeDtypeStruct with shardings on `abstract`, all of them checked.

    `sharding` is a pytree prefix of shardings, which go before the leaves' own. Plain numbers stay
    as they are, and whatever is not an array if it `may_be_static`. Raises FlintError FL102, FL103, FL104, FL106 or FL208.
    """
    jax = import_jax()
    leaves, tree = jax.tree_util.tree_flatten_with_path(value)
    given = _broadcast(sharding, value, len(leaves), prefix, place)
    converted = []
    for (path, leaf), leaf_sharding in zip(leaves, given, strict=True):
        name = prefix + jax.tree_util.keystr(path)
        opaque = may_be_static and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
        if opaque or isinstance(leaf, bool | int | float | complex):
            converted.append(leaf)  # a weakly typed scalar, or static for the user's own jit
            continue
        chosen = leaf_sharding if leaf_sharding is not None else own_sharding(leaf)
        spec = _spec_of(chosen)
        shape, dtype = _shape_and_dtype(leaf, name, place)
        check_spec(spec, shape, dtype, name, mesh, place)
        on_mesh = _on_mesh(abstract, spec, chosen) if spec is not None else None
        weak = bool(getattr(leaf, "weak_type", False))
        converted.append(jax.ShapeDtypeStruct(shape, dtype, sharding=on_mesh, weak_type=weak))
    return jax.tree_util.tree_unflatten(tree, converted)


def _broadcast(
    sharding: object, value: object, count: int, prefix: str, place: str | None
) -> list[Any]:
    """Spread a pytree prefix of shardings over the leaves of an argument."""
    jax = import_jax()
    if sharding is None or _is_sharding(sharding):
        return [sharding] * count
    _require_shardings(sharding, f"in_shardings of {prefix}", place)
    try:
        full = jax.tree.map(
            lambda s, sub: [s] * len(jax.tree.leaves(sub)),
            sharding,
            value,
            is_leaf=lambda s: s is None or _is_sharding(s),
        )
    except ValueError as error:
        raise FlintError(
            "FL104",
            f"in_shardings of {prefix} is not a prefix of the argument: "
            f"{str(error).splitlines()[0]}",
            place=place,
        ) from error
    leaves: list[Any] = jax.tree.leaves(full, is_leaf=lambda s: s is None or _is_sharding(s))
    return leaves


def _require_shardings(tree: object, what: str, place: str | None) -> None:
    """Raise FlintError FL104 if a leaf of a tree of shardings is none: JAX would say so later."""
    jax = import_jax()
    for leaf in jax.tree.leaves(tree, is_leaf=_is_sharding):
        if not _is_sharding(leaf):
            raise FlintError(
                "FL104",
                f"{what} holds {shown(leaf)}, which is not a sharding",
                place=place,
                help="give PartitionSpecs, NamedShardings, or None for no sharding",
            )


def _spec_of(sharding: object) -> PartitionSpec | None:
    """The PartitionSpec of whatever an argument carries; None where it says nothing of a mesh."""
    jax = import_jax()
    if isinstance(sharding, jax.sharding.PartitionSpec):
        return sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        return sharding.spec
    return None


def _refuse_symbolic(leaf: Any, name: str, place: str | None) -> None:
    for size in leaf.shape:
        if not isinstance(size, int | np.integer):
            raise FlintError(
                "FL208",
                f"argument {name} has a symbolic dimension ({size})",
                place=f"{place or name}  {show_array(leaf.dtype, leaf.shape)}",
                help="give every dimension a size: work and bytes depend on it",
            )


def _shape_and_dtype(leaf: Any, name: str, place: str | None) -> tuple[tuple[int, ...], Any]:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        _refuse_symbolic(leaf, name, place)
        return tuple(leaf.shape), leaf.dtype
    raise FlintError(
        "FL104",
        f"argument {name} is {type(leaf).__name__}, not an array",
        place=place,
        help="pass jax.ShapeDtypeStruct(shape, dtype), or name it in static_argnums",
    )


# the function ---------------------------------------------------------------------------------


def _jitted(form: Handed, abstract: AbstractMesh, mesh: Mesh, place: str | None) -> Wrapped:
    jax = import_jax()
    step = form.step
    donated = positions(step.donate_argnums, len(step.args), "donate_argnums", place)
    static = positions(step.static_argnums, len(step.args), "static_argnums", place)
    if form.is_jitted:
        jitted: Wrapped = step.fn
        return jitted
    options: dict[str, Any] = {}
    if step.out_shardings is not None:
        _require_shardings(step.out_shardings, "out_shardings", place)
        options["out_shardings"] = jax.tree.map(
            lambda s: _out_sharding(s, abstract, mesh, place),
            step.out_shardings,
            is_leaf=lambda s: s is None or _is_sharding(s),
        )
    if donated:
        options["donate_argnums"] = donated
    if static:
        options["static_argnums"] = static
    try:
        return jax.jit(step.fn, **options)
    except TypeError as error:  # what it takes for no function: a generator, for one
        raise user_error(error, "jitting the step", place) from error


def _out_sharding(
    sharding: object, abstract: AbstractMesh, mesh: Mesh, place: str | None
) -> NamedSharding | None:
    spec = _spec_of(sharding)
    if spec is None:
        return None
    where = f"{place or 'out_shardings'}  out_shardings {show_spec(spec)}"
    check_axes(spec, "a result", mesh, where)
    return _on_mesh(abstract, spec, sharding)


def _on_mesh(abstract: AbstractMesh, spec: PartitionSpec, given: object) -> NamedSharding:
    """A sharding on the abstract mesh, in the kind of memory that the given one names."""
    kind = getattr(given, "memory_kind", None)
    return import_jax().sharding.NamedSharding(abstract, spec, memory_kind=kind)
