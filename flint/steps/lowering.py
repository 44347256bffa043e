"""What turns a whole program into the program of one device: a partitioner, or a compiler for a
chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flint.errors import FlintError, nearest

#: The partitioner that nobody has to name, and its own name: XLA's, which hardware runs, is the only one.
AUTO: Final = "auto"
PARTITIONERS: Final = (AUTO, "xla")
#: Compilers by their names.
COMPILERS: Final = ("xla-gpu", "xla-tpu", "xla-tpu-cycles")


@dataclass(frozen=True, slots=True)
class Lowering:
    """A partitioner, or a compiler with its chip ("" is the default one).

    "xla-tpu" stops before it generates code, "xla-tpu-cycles" does not: it takes 20 to 60 times as
    long, and then the program has the compiler's cycle estimate for each kernel.

    Raises FlintError FL404 and FL410 for a partitioner and a compiler that do not exist, and FL218 for a
    partitioner beside a compiler, which has its own.
    """

    partitioner: str = AUTO
    compiler: str = ""
    chip: str = ""

    def __post_init__(self) -> None:
        if self.partitioner not in PARTITIONERS:
            raise FlintError(
                "FL404",
                f"there is no partitioner '{self.partitioner}'{nearest(self.partitioner, PARTITIONERS)}",
                help="omit it: XLA's own, which hardware runs, is the only one",
            )
        if self.compiler and self.compiler not in COMPILERS:
            raise FlintError(
                "FL410",
                f"there is no compiler '{self.compiler}'{nearest(self.compiler, COMPILERS)}",
                help=f"choose one of {', '.join(COMPILERS)}",
            )
        if self.compiler and self.partitioner != AUTO:
            raise FlintError(
                "FL218",
                f"{self.compiler} has its own partitioner",
                help="omit --partitioner, or --compiler",
            )

    @property
    def family(self) -> str:
        """The compiler, however far it goes: "xla-gpu" or "xla-tpu"."""
        return self.compiler.removesuffix("-cycles")
