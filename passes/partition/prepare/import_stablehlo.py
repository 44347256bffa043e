"""Read a StableHLO file of any form into bytecode with a `main` function. Runs in the child."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flint.errors import FlintError
from flint.passes.call_graph import MOST_NESTED, check_call_graph
from flint.passes.locations import Locations, decode_location
from flint.passes.mlir import functions_of, make_context, write_bytecode
from flint.passes.partition.prepare.gspmd import is_gspmd, refuse_gspmd
from flint.passes.partition.worker import announce


def import_stablehlo(data: bytes, source: str) -> tuple[dict[str, Any], bytes]:
    """Parse text, bytecode or a portable artifact (VHLO).

    Returns ({"mesh": {axis: size} or None, "warnings": sentences, "gspmd": whether its shardings are
    XLA's old ones}, bytecode). Raises FlintError
    FL302 when the bytes are none of these, hold no function or functions that call one another
    without end, or annotate shardings in a form that Shardy does not read.
    """
    with make_context() as context:
        announce(f"parse {source}")
        module = _parse(data, source, context)
        try:
            renamed = _name_main(module, source)
            mesh = _mesh_of(module, source)
            check_calls(module, "FL302", source)
            announce(f"read the names in {source}")
            _read_text(module, source)
            bytecode = write_bytecode(module)
            old = is_gspmd(module, bytecode)
            if not old:
                refuse_gspmd(module, bytecode, "FL302", source)
            return {"mesh": mesh, "warnings": renamed, "gspmd": old}, bytecode
        except (RuntimeError, ValueError) as error:  # damaged text shows only when it is read
            raise _unreadable(source, error) from error


def _parse(data: bytes, source: str, context: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    text: str | bytes = data
    if data[:4] == b"ML\xefR":
        if b"StableHLO_v" in data[:64]:
            try:
                return stablehlo.deserialize_portable_artifact(context, data)
            except (ir.MLIRError, ValueError) as error:
                raise _unreadable(source, error) from error
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise FlintError(
                "FL302",
                f"{source} is neither StableHLO text nor MLIR bytecode (byte {error.start})",
                help="save it with str(lowered.compiler_ir('stablehlo')) or jax.export",
            ) from error
        if not text.strip():
            raise FlintError("FL302", f"{source} is empty")
    try:
        return ir.Module.parse(text)
    except (ir.MLIRError, ValueError) as error:
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: Any) -> FlintError:
    found = getattr(error, "error_diagnostics", None)
    place = None
    message = str(error).strip().splitlines()[0] if str(error).strip() else "unknown reason"
    if found:
        message = found[0].message
        place = str(found[0].location).removeprefix("loc(").removesuffix(")").replace('"-"', source)
    return FlintError("FL302", f"{source} is not a StableHLO module: {message}", place=place)


def _read_text(module: Any, source: str) -> None:
    """Read every name and location once, here, where it may crash; refuse dynamic dimensions.

    Text that is no UTF-8 (a damaged file) ends the process that reads it, and the process that
    extracts is the user's.
    """
    from jaxlib.mlir import ir

    read = Locations().decode
    dynamic: list[Any] = []

    def check(value: Any) -> None:
        if not isinstance(value.type, ir.ShapedType):
            return
        if not isinstance(value.type, ir.RankedTensorType) or not value.type.has_static_shape:
            dynamic.append(value)

    def visit(op: ir.Operation) -> ir.WalkResult:
        read(op.location)
        for result in op.results:
            check(result)
        for region in op.regions:
            for block in region:
                for argument in block.arguments:
                    read(argument.location)
                    check(argument)
        for name in op.attributes:
            if isinstance(op.attributes[name], ir.StringAttr):
                _ = op.attributes[name].value
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if dynamic:
        raise FlintError(
            "FL302",
            f"{source} has {_unsized(dynamic[0].type)}: {dynamic[0].type}",
            place=decode_location(dynamic[0].location)[1] or None,
            help="export it with static shapes: work and bytes depend on them",
        )


def _unsized(kind: Any) -> str:
    from jaxlib.mlir import ir

    if isinstance(kind, ir.RankedTensorType):
        return "dynamic dimensions"
    return "tensors without a rank" if isinstance(kind, ir.UnrankedTensorType) else "no tensors"


def _name_main(module: Any, source: str) -> list[str]:
    """Call the entry function `main`, if it is the only public one under another name.

    Returns what the user should know of it.
    """
    functions = [f.operation for f in module.body if f.operation.name == "func.func"]
    names = [f.attributes["sym_name"].value for f in functions]
    if "main" in names:
        return []
    public = [
        f
        for f in functions
        if "sym_visibility" not in f.attributes or f.attributes["sym_visibility"].value == "public"
    ]
    if len(public) != 1:
        raise FlintError(
            "FL302",
            f"{source} has no function 'main' (it has {', '.join(names) or 'no functions'})",
            help="name the function to capture 'main'",
        )
    from jaxlib.mlir import ir

    taken = public[0].attributes["sym_name"].value
    public[0].attributes["sym_name"] = ir.StringAttr.get("main")
    return [f"{source} has no function 'main': its only public one, '{taken}', is taken for it"]


def _mesh_of(module: Any, source: str) -> dict[str, int] | None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    replicas = module.operation.attributes.get("mhlo.num_replicas", None)
    if replicas is not None and ir.IntegerAttr(replicas).value > 1:
        raise FlintError(
            "FL302",
            f"{source} runs as {ir.IntegerAttr(replicas).value} replicas, whose collectives name no partitions",
            help="write it for one replica and several partitions: with shardings, or jax.shard_map",
        )
    meshes = []
    for op in module.body:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.operation.attributes["mesh"])
            axes = [sdy.MeshAxisAttr(a) for a in mesh.axes]
            if axes and list(mesh.device_ids) not in ([], sorted(mesh.device_ids)):
                raise FlintError(
                    "FL302",
                    f"{source} has a mesh with devices in an order of its own: {mesh}",
                    help="write it without device_ids: shardings name axes, which any devices may form",
                )
            if axes:
                meshes.append({a.name: int(a.size) for a in axes})
    if len({tuple(m.items()) for m in meshes}) > 1:
        raise FlintError("FL302", f"{source} uses several meshes: {meshes}")
    return meshes[0] if meshes else None


def check_calls(module: Any, code: str, name: str) -> None:
    """Raise FlintError `code` unless all that is called is there, and `check_call_graph` holds.

    `name` names the module.
    """
    bodies = {f: op for f, op in functions_of(module).items() if len(op.regions[0].blocks)}
    calls: dict[str, Counter[str]] = {f: Counter() for f in bodies}
    sizes = {f: _read(op, calls[f], code, name) for f, op in bodies.items()}
    for caller, found in (("", {"main": 1}), *calls.items()):
        missing = next((c for c in found if c not in calls), None)
        if missing is not None:
            wrong = f", which '{caller}' calls," if caller else ""
            help_ = "the file has to hold the body of every function that is called"
            raise FlintError(code, f"{name}: function '{missing}'{wrong} has no body", help=help_)
    check_call_graph(calls, sizes, code, name)


def _read(function: Any, calls: Counter[str], code: str, name: str) -> int:
    """Count a function's calls; returns how many operations it has, those inside others too."""
    count = 0
    todo = [(op.operation, 1) for block in function.regions[0] for op in block]
    while todo:
        op, depth = todo.pop()
        count += 1
        if depth > MOST_NESTED:
            raise FlintError(
                code, f"{name} has operations inside more than {MOST_NESTED} others ({op.name})"
            )
        if op.name == "func.call":
            calls[op.attributes["callee"].value] += 1
        for region in op.regions:
            for block in region:
                todo += [(inner.operation, depth + 1) for inner in block]
    return count
