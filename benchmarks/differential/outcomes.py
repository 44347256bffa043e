"""One generated program on both sides: captured with a profile, and through the whole compiler."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from benchmarks.compilers.compare import Comparison
from benchmarks.compilers.kernels import Done, captured_side, compiled_side, difference
from benchmarks.compilers.whole import Compiler
from benchmarks.differential.programs import Program
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.frontends.jax_step.program import capture_jax
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Traffic, side
from flint.passes.partition.xla import partitioned
from flint.passes.profiles import profile

#: Cluster and software of both sides' prices.
PRICES = {"xla-gpu": ("h100-dgx", "xla"), "xla-tpu": ("v5p", "xla-tpu")}
#: What is compared besides collectives, and how far it may be off.
BARS = {
    "product_flops": 0.0,
    "memory_bytes": 0.10,
    "kernels": 0.10,
    "moved_bytes": 0.10,
    "step_ns": 0.10,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one program; `error` says why there is no comparison, and whose it is."""

    program: Program
    collectives: Comparison | None = None
    captured: Done | None = None
    compiled: Done | None = None
    error: str = ""
    fault: str = ""  #: "compiler", "refused" (a FlintError) or "crash" (which exits 70).

    @property
    def cause(self) -> str:
        """The operation, and which collectives one side has more bytes of; "" where equal."""
        if self.fault:
            line = self.error.strip().splitlines()[-1 if self.fault == "crash" else 0]
            return f"{self.program.family}, {self.program.label}: {self.fault}: {line[:80]}"
        assert self.collectives is not None, "compared"
        if self.collectives.is_equal:
            return ""
        mine, other = (
            by_kind(s.collectives) for s in (self.collectives.captured, self.collectives.compiled)
        )
        signs = [
            f"{'+' if mine.get(k, 0) > other.get(k, 0) else '-'}{k.replace('_', '-')}"
            for k in sorted({*mine, *other})
            if mine.get(k, 0) != other.get(k, 0)
        ]
        return f"{self.program.family}, {self.program.label}: {' '.join(signs) or 'axes'}"

    def off(self, column: str) -> float:
        """How far the captured side is from the compiled one, relative to that."""
        assert self.captured is not None and self.compiled is not None, "compared"
        return difference(getattr(self.captured, column), getattr(self.compiled, column))


def by_kind(traffic: Traffic) -> dict[str, int]:
    """Bytes of each kind of collective, over whichever axes."""
    found: dict[str, int] = {}
    for (kind, _), (_, size) in traffic.items():
        found[kind] = found.get(kind, 0) + size
    return found


@dataclass
class Judge:
    """Compares programs with one compiler."""

    compiler: str = "xla-gpu"

    def __post_init__(self) -> None:
        cluster, self.stack = PRICES[self.compiler]
        self.cluster: Cluster = load_cluster(cluster)
        self.whole = Compiler(self.compiler)

    def outcome(self, program: Program) -> Outcome:
        """Both sides of one program."""
        try:
            step = replace(program.step, platform=self.whole.platform)
            captured = capture_jax(step, program.mesh)
            found, memory_bytes = self.whole.compiled(captured)
            other = compiled_side(found, self.cluster, self.stack)
        except FlintError as error:
            return Outcome(program, error=str(error), fault="compiler")
        try:
            mine = partitioned(captured).program
            estimated = captured_side(mine, self.cluster, self.compiler)
            rewritten = run_passes(mine, profile(self.compiler).passes)
        except FlintError as error:
            return Outcome(program, error=str(error), fault="refused")
        except Exception:  # noqa: BLE001  # a crash is what is looked for
            return Outcome(program, error=traceback.format_exc(), fault="crash")
        both = Comparison(program.name, str(program.mesh), side(rewritten), side(found))
        done = Done.of(estimated), Done.of(other, memory_bytes)
        return Outcome(program, both, *done)
