"""Programs that JAX has traced, lowered, exported or compiled already, as its stages hold them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_step.equations import refuse_huge_constants
from flint.frontends.jax_step.gpu_kernels import lowering_options
from flint.frontends.jax_step.settings import capturing_on
from flint.frontends.user_code import user_error
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.passes.mlir import write_bytecode
from flint.passes.partition.prepare.attention import attach_attention_rules
from flint.steps.captured import Captured

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr
    from jaxlib.mlir import ir

_DONOR, _ALIASED = "jax.buffer_donor", "tf.aliasing_output"


def stage_of(value: Any) -> Any:
    """The stage of `jax.stages` in a library's own (those of Flax NNX, Equinox), else `value`."""
    import jax

    kinds = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)
    if isinstance(value, (*kinds, type)):
        return value
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    for name in names or ("traced", "lowered", "compiled"):
        inner = getattr(value, name, None)
        if isinstance(inner, kinds):
            return inner
    return value


def mark_donated(module: ir.Module, program: ClosedJaxpr) -> None:
    """Donate in `main` what a jitted function that the program calls is given to keep.

    Arguments are found by the names that JAX gives them.
    """
    from jaxlib.mlir import ir

    names = dict(zip(program.jaxpr.invars, program.jaxpr.debug_info.arg_names, strict=False))
    donated = {
        f'"{names.get(value)}"'
        for equation in program.jaxpr.eqns
        for value, given in zip(
            equation.invars, equation.params.get("donated_invars", ()), strict=False
        )
        if given and not hasattr(value, "val")
    }
    if not donated:
        return
    main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    with module.context:
        marks = [{a.name: a.attr for a in d} for d in map(ir.DictAttr, main.arg_attrs)]
        for argument, attributes in zip(main.arguments, marks, strict=True):
            is_marked = _DONOR in attributes or _ALIASED in attributes
            if (
                not is_marked
                and str(argument.location).removeprefix("loc(").split("(")[0].rstrip(")") in donated
            ):
                attributes[_DONOR] = ir.BoolAttr.get(True)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in marks])


# programs that are staged already -------------------------------------------------------------


def is_staged(value: object) -> bool:
    """Whether a program was traced, lowered, exported or compiled already, or serialized."""
    if isinstance(value, bytes | bytearray):
        return True
    if "jax" not in sys.modules:
        return False
    import jax

    stages = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)
    return isinstance(stage_of(value), stages) or _is_exported(value)


def _is_exported(value: object) -> bool:
    found = sys.modules.get("jax.export")
    return found is not None and isinstance(value, found.Exported)


def capture_staged(
    staged: Any, mesh: Mesh, platform: str, trip_counts: Mapping[str, int]
) -> Captured | Program:
    """What JAX has staged already, or the bytes of `jax.export.Exported.serialize`.

    A compiled program is the one of its device, as the compiler left it; all others are still to
    be partitioned. Raises FlintError FL105 for another mesh than its own, FL203 or FL207 where it
    cannot be lowered, FL302 for bytes that are no program, FL303 for a compiled program without
    its HLO.
    """
    import jax

    # not above: steps, which are most that is captured, need no reader of files
    from flint.frontends.files.hlo import read_hlo
    from flint.frontends.files.stablehlo import capture_stablehlo

    staged = stage_of(staged)
    if isinstance(staged, jax.stages.Compiled):
        return read_hlo(_hlo_of(staged), mesh, name="compiled", trip_counts=trip_counts)
    if isinstance(staged, bytes | bytearray):
        return capture_stablehlo(bytes(staged), mesh, "exported", trip_counts)
    if _is_exported(staged):
        data, name = staged.mlir_module_serialized, str(staged.fun_name)
        return capture_stablehlo(data, mesh, name, trip_counts)
    name = str(getattr(staged, "fun_name", "")) or "step"
    if isinstance(staged, jax.stages.Traced):
        staged = _lowered(staged, mesh, platform, name)
    module = staged.compiler_ir("stablehlo")
    attach_attention_rules(module)
    found = capture_stablehlo(write_bytecode(module), mesh, name, trip_counts)
    return replace(found, name=_plain_name(module, name))


def _lowered(traced: Any, mesh: Mesh, platform: str, name: str) -> Any:
    from flint.frontends.jax_step.meshes import abstract_mesh
    from flint.frontends.jax_step.settings import platform_name

    chosen = platform_name(platform)
    refuse_huge_constants(traced.jaxpr, None)
    with capturing_on(abstract_mesh(mesh)):
        try:
            return traced.lower(**lowering_options(chosen, traced.jaxpr))
        except Exception as error:
            raise user_error(error, f"lowering {name} for {chosen}") from error


def _plain_name(module: ir.Module, name: str) -> str:
    if name != "step":
        return name
    return str(module.operation.attributes["sym_name"].value).removeprefix("jit_")


def _hlo_of(compiled: Any) -> bytes:
    text = compiled.as_text()
    if not text:
        raise FlintError(
            "FL303",
            "the compiled program does not give its HLO",
            help="pass the Lowered that it was compiled from",
        )
    return str(text).encode()
