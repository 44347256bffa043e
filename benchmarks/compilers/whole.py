"""XLA's whole compilers without a device, in a process that stays warm.

What they made is kept in $FLINT_CACHE_DIR by StableHLO, without lines of source, so that what was
compiled before is found again when they move.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from flint.errors import FlintError
from flint.ir.program import Program
from flint.passes.compilers.child import compile_module
from flint.passes.compilers.compiled import compile_captured, program_of
from flint.passes.compilers.process import compile_in_child
from flint.passes.compilers.target import find_target
from flint.passes.mlir import make_context
from flint.steps.captured import Captured
from flint.steps.lowering import Lowering

CHIPS = {"xla-gpu": "h100", "xla-tpu": "v5p"}


@dataclass
class Compiler:
    """One of XLA's compilers, by its name in Flint."""

    name: str
    pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.lowering = Lowering(compiler=self.name, chip=CHIPS[self.name])
        self.platform = find_target(self.name, CHIPS[self.name]).platform

    def compiled(self, captured: Captured) -> tuple[Program, int]:
        """The program that it makes, and the most memory in use by its own account.

        Raises FlintError where it refuses the program, ends, or is not installed.
        """
        plain = replace(captured, module=_without_lines(captured.module))
        found = compile_captured(plain, self.lowering, self._run)
        return program_of(found, captured), found.by.memory.peak_bytes

    def _run(self, options: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
        """Ask a process that stays; libtpu's, which leaves code generation behind, does not."""
        if not options["generates_code"]:
            return compile_in_child(options, module)
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(1, context, _prepare, max_tasks_per_child=300)
        try:
            found = self.pool.submit(_compiled, options, module).result()
        except BrokenProcessPool as error:
            self.pool = None
            raise FlintError("FL401", "the compiler's process ended") from error
        if isinstance(found, str):
            raise FlintError("FL402", found)
        return found


def _without_lines(bytecode: bytes) -> bytes:
    """The module as text: every constant whole, and no lines of source."""
    from jaxlib.mlir import ir

    with make_context():
        return str(ir.Module.parse(bytecode).operation.get_asm()).encode()


def _prepare() -> None:
    """The environment of a process that has a compiler and no device."""
    os.environ.pop("JAX_PLATFORMS", None)
    os.environ.update(JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1", TF_CPP_MIN_LOG_LEVEL="3")


def _compiled(options: dict[str, Any], module: bytes) -> tuple[dict[str, int], bytes] | str:
    """In the process: what the compiler made, or why not."""
    try:
        return compile_module(options, module)
    except FlintError as error:
        return error.message
