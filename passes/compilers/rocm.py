"""AMD's compiler without AMD's libraries: what JAX's ROCm plugin is linked against is made up.

The plugin asks the libraries of ROCm for devices, and they for a driver. To compile for a chip that is
described it needs none of them: their functions are there, and return an error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from flint.errors import FlintError
from flint.passes.compilers.elf import Needs, failing_library
from flint.passes.jax_private import pretend_amd_gpus

#: Libraries of Linux: everything else that the plugin is linked against is of ROCm.
_OF_LINUX: Final = ("libc.", "libm.", "librt.", "libpthread.", "libdl.", "libstdc++.", "libgcc_s.",
                    "ld-linux-")  # fmt: skip


def load_without_rocm(packages: Iterable[str]) -> None:
    """Let JAX load the libraries of its ROCm plugin, which lie in `packages`, although no ROCm is here.

    What is installed of ROCm is not loaded by this process any more. Raises FlintError FL417 where
    the system cannot load such libraries.
    """
    try:
        made = made_up(library for package in packages for library in _libraries_of(package))
        _load(made)
    except (OSError, ValueError, AttributeError) as error:  # no memfd_create but on Linux
        raise FlintError(
            "FL417",
            f"JAX's ROCm plugin cannot be loaded here: {error}",
            help="its libraries are for Linux on x86-64: capture there, or install it anew there",
        ) from error
    pretend_amd_gpus()


def made_up(libraries: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Libraries of ROCm that `libraries` need, and their symbols with versions.

    A symbol without a version may be of any of them: it is put into the first that is needed.
    Raises ValueError and OSError for what is no library.
    """
    found: dict[str, dict[str, str]] = {}
    here = ctypes.CDLL(None)
    for needs in map(Needs.of, libraries):
        missing = [name for name in needs.libraries if not name.startswith(_OF_LINUX)]
        for name in missing:
            found.setdefault(name, {})
        for symbol in needs.symbols:
            library = symbol.library or next(iter(missing), "")
            if library in found and (symbol.library or not hasattr(here, symbol.name)):
                found[library][symbol.name] = symbol.version
    return found


def _load(made: dict[str, dict[str, str]]) -> None:
    """Load them from memory: a library is then found by its name, and nothing of it is on a disk."""
    opened: list[int] = []
    try:
        for name, symbols in made.items():
            opened.append(os.memfd_create(name))
            os.write(opened[-1], failing_library(name, symbols))
            # The loader knows a path again: each file stays open until all are loaded.
            ctypes.CDLL(f"/proc/self/fd/{opened[-1]}")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _libraries_of(package: str) -> Collection[Path]:
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return [file for folder in folders for file in sorted(Path(folder).glob("*.so"))]
