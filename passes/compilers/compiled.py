"""From a captured program to what a whole compiler makes of it for one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from flint.errors import FlintError
from flint.ir.made_by import CompiledBy, CompilerMemory
from flint.ir.program import Program
from flint.passes.compilers import cache
from flint.passes.compilers.child import TOO_LARGE
from flint.passes.compilers.gpu_targets import GpuTarget
from flint.passes.compilers.plugins import installed
from flint.passes.compilers.process import compile_in_child, flags
from flint.passes.compilers.target import Target, find_target
from flint.passes.hlo.arguments import argument_shardings
from flint.passes.hlo.facts import CapturedFacts
from flint.passes.hlo.module import HloModule, decode_module
from flint.passes.hlo.walk import module_to_program
from flint.passes.work.declared import declared_names
from flint.steps.captured import Captured
from flint.steps.lowering import Lowering
from flint.text import format_bytes

#: What the compiler's process is asked, and a module: memory in bytes, and the optimised module.
Run = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]


@dataclass(frozen=True, slots=True)
class OptimisedModule:
    """An optimised module of one device, and who made it."""

    module: HloModule
    by: CompiledBy
    warning: str = ""


def compile_captured(
    captured: Captured, lowering: Lowering, run: Run = compile_in_child
) -> OptimisedModule:
    """Compile for the whole mesh, or take what was compiled before. `run` asks a process for it.

    Raises FlintError FL411 and FL412 (installation), FL413 (chip), FL414 (size), FL401, FL402,
    FL415, FL416 and FL417 (the compiler).
    """
    target = find_target(lowering.family, lowering.chip)
    plugin = installed(target.platform)
    options, topology = _request(captured, lowering, target)
    versions = {"version": plugin.version, "jaxlib": version("jaxlib"), "flags": flags()}
    key = cache.key_of({**options, **versions}, captured.module)
    found = cache.find(key)
    if found is None:
        found = run(options, captured.module)
        cache.store(key, *found)
    facts, data = found
    memory = CompilerMemory(**{name: int(facts[name]) for name in CompilerMemory.__slots__})
    _require_room(memory, target)
    by = CompiledBy(lowering.compiler, options["chip"], plugin.version, topology, memory)
    warnings = (plugin.warning, target.caveat, facts.get("warning", ""))
    module = decode_module(data, captured.source)
    return OptimisedModule(module, by, "; ".join(filter(None, warnings)))


def _require_room(memory: CompilerMemory, target: Target) -> None:
    """libtpu refuses a program that is too large after the point up to which it is run here."""
    if isinstance(target, GpuTarget) or memory.peak_bytes <= target.memory_bytes:
        return
    raise FlintError(
        "FL416",
        f"the program does not fit the chip: it needs {format_bytes(memory.peak_bytes)} on each "
        f"{target.name}, which has {format_bytes(target.memory_bytes)}",
        help=TOO_LARGE,
    )


def program_of(compiled: OptimisedModule, captured: Captured) -> Program:
    """The compiled module as the program of one device. Raises FlintError FL403."""
    return module_to_program(
        compiled.module,
        captured.mesh,
        captured.trip_counts,
        CapturedFacts(argument_shardings(captured)),
    )


def _request(captured: Captured, lowering: Lowering, target: Target) -> tuple[dict[str, Any], str]:
    """What the child is asked for, and the topology in words."""
    devices = captured.mesh.size
    options: dict[str, Any] = {
        "compiler": lowering.family,
        "platform": target.platform,
        "generates_code": lowering.compiler != "xla-tpu",
        "chip": target.name,
        "devices": devices,
        "is_gspmd": captured.is_gspmd,
        "declared": [n for n in declared_names() if n.encode() in captured.module],
    }
    if isinstance(target, GpuTarget):
        given = {"text": target.text(), "gpus_per_host": target.gpus_per_host}
        return {**options, **given}, f"{devices} GPUs"
    torus = target.slice_of(devices)
    return {**options, "topology": torus.keywords(), "accelerator": target.accelerator}, str(torus)
