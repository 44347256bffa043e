"""Shardy's propagation over one module: how calls of kernels and results of steps are sharded.

The order is that of Shardy's own pipeline. See docs/decisions/0004-shardy-pipeline.md.
"""

from __future__ import annotations

from typing import Any

from flint.errors import FlintError
from flint.passes.locations import decode_location
from flint.passes.mlir import functions_of
from flint.passes.partition.prepare.host_calls import take_host_calls_apart
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.rules import attach_rules
from flint.passes.partition.prepare.scans import scans_as_windows
from flint.passes.partition.prepare.sizes import refuse_huge_tensors
from flint.passes.partition.prepare.zeros import drop_empty_results
from flint.passes.partition.worker import announce

#: Drops functions that nothing calls any more.
DROP_UNUSED = "symbol-dce"
PROPAGATE = (
    DROP_UNUSED,
    "sdy-lift-inlined-meshes",
    "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call",
    "sdy-constant-or-scalar-splitter",
    DROP_UNUSED,
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
    "sdy-flatten-call-graph",
    DROP_UNUSED,
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}",
    DROP_UNUSED,
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-pre-order-funcs",
    "sdy-user-priority-propagate{keep-sharding-rules=true run-op-priority-propagation=true}",
    "sdy-export-named-computations",
    "sdy-propagate-to-func-results",
    "sdy-unflatten-call-graph",  # copies that are sharded otherwise stay copies
    DROP_UNUSED,
    "sdy-insert-func-call-reshards",
    "func.func(sdy-constant-or-scalar-merger)",
    "func.func(sdy-sink-data-flow-edges)",
    "sdy-remove-sharding-groups",
    "func.func(sdy-sharding-constraint-to-reshard)",
    "sdy-update-non-divisible-input-output-shardings",
    "sdy-remove-sub-axes-in-input-output-shardings",
    "sdy-close-shardings",
    "cse",
)


def propagated_module(bytecode: bytes) -> Any:
    """A module after propagation: every value has its sharding, and nothing is resharded yet.

    To be called in a context of `make_context`. Raises FlintError FL402 with
    the compiler's own diagnostic and the operation it names.
    """
    from jaxlib.mlir import ir

    module = ir.Module.parse(bytecode)
    if refuse_huge_tensors(module):
        drop_empty_results(module)
    announce("inline")
    inline_calls(module)
    take_host_calls_apart(module, bytecode)
    if b"scan" in bytecode:
        scans_as_windows(module)
    attach_rules(module, bytecode)
    _run(module, PROPAGATE)
    return module


def result_shardings(module: Any) -> list[str]:
    """The sharding of each result of `main` as MLIR writes it, "" where there is none."""
    from jaxlib.mlir import ir

    main = functions_of(module)["main"]
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    if "res_attrs" not in main.attributes:
        return [""] * len(kind.results)
    found = map(ir.DictAttr, ir.ArrayAttr(main.attributes["res_attrs"]))
    return [str(a["sdy.sharding"]) if "sdy.sharding" in a else "" for a in found]


def _run(module: Any, passes: tuple[str, ...]) -> None:
    """Run passes one after another, announcing each, without re-verifying the module between.

    Verification after each pass takes two thirds of the time on unrolled models, and the module
    was verified when it was parsed.
    """
    from jaxlib.mlir import ir, passmanager

    for name in passes:
        if name == DROP_UNUSED and len(functions_of(module)) == 1:
            continue
        announce(name)
        manager = passmanager.PassManager.parse(f"builtin.module({name})")
        manager.enable_verifier(False)
        try:
            manager.run(module.operation)
        except ir.MLIRError as error:
            raise _failure(name, error) from error


def _failure(name: str, error: Any) -> FlintError:
    found = error.error_diagnostics
    message = found[0].message if found else str(error)
    scope, place = decode_location(found[0].location) if found else ("", "")
    return FlintError(
        "FL402",
        f"{name.split('{')[0]} failed: {message}",
        place=" ".join(t for t in (place, scope) if t) or None,
        help="check the shardings of this operation, or compute it in jax.shard_map",
    )
