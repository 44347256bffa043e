"""What turns a whole program into the program of one device: XLA's partitioner, or a compiler for a chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flint.errors import FlintError, nearest

#: Compilers by their names.
COMPILERS: Final = ("xla-gpu", "xla-tpu", "xla-tpu-cycles")


@dataclass(frozen=True, slots=True)
class Lowering:
    """XLA's partitioner, or ("" is none) a compiler with its chip ("" is the default one).

    "xla-tpu" stops before it generates code, "xla-tpu-cycles" does not: it takes 20 to 60 times as
    long, and then the program has the compiler's cycle estimate for each kernel.

    Raises FlintError FL410 for a compiler that does not exist.
    """

    compiler: str = ""
    chip: str = ""

    def __post_init__(self) -> None:
        if self.compiler and self.compiler not in COMPILERS:
            raise FlintError(
                "FL410",
                f"there is no compiler '{self.compiler}'{nearest(self.compiler, COMPILERS)}",
                help=f"choose one of {', '.join(COMPILERS)}",
            )

    @property
    def family(self) -> str:
        """The compiler, however far it goes: "xla-gpu" or "xla-tpu"."""
        return self.compiler.removesuffix("-cycles")
