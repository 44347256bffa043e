"""Which chip a compiler is for: from a name, a cluster, or what its plugin takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flint.errors import FlintError, nearest
from flint.ir.made_by import is_chip, words_of
from flint.passes.compilers.gpu_targets import GPU_TARGETS, GpuTarget
from flint.passes.compilers.tpu_targets import TPU_TARGETS, TpuTarget

Target = GpuTarget | TpuTarget

#: Chips by the compiler that knows them.
TARGETS: Final[Mapping[str, Mapping[str, Target]]] = {
    "xla-gpu": GPU_TARGETS,
    "xla-tpu": TPU_TARGETS,
}
#: Those that are compiled for where no chip is named.
USUAL: Final = {"xla-gpu": "h100", "xla-tpu": "v5p"}


def find_target(compiler: str, chip: str) -> Target:
    """The chip called `chip`: a target's name, a cluster's ("h100-dgx") or its TOML file.

    "" is the usual one. Raises FlintError FL413 for a chip that the compiler does not know, and
    FL701 for a file that is no cluster.
    """
    known = TARGETS[compiler]
    name = _name_in(chip) if chip.endswith(".toml") else chip or USUAL[compiler]
    fitting = [target for target in known.values() if is_chip(target.name, name)]
    if fitting:
        return max(fitting, key=lambda target: len(words_of(target.name)))
    raise _unknown(compiler, chip, list(known))


def _name_in(path: str) -> str:
    from flint.cluster.named import load_cluster

    return load_cluster(path).chip.name


def _unknown(compiler: str, chip: str, known: list[str]) -> FlintError:
    other = next((c for c, t in TARGETS.items() if c != compiler and _is_of(chip, t)), "")
    help = f"--compiler {other} knows it" if other else f"choose one of {', '.join(known)}"
    return FlintError(
        "FL413",
        f"--compiler {compiler} has no description of the chip '{chip}'{nearest(chip, known)}",
        help=help,
    )


def _is_of(chip: str, targets: Mapping[str, Any]) -> bool:
    return any(is_chip(name, chip) for name in targets)
