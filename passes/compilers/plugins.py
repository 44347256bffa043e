"""The compilers as they are installed: which package has one, and whether it fits the JAX here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from typing import Final

from flint.errors import FlintError


@dataclass(frozen=True, slots=True)
class Plugin:
    """A compiler's package. `packages` are distributions that may bring it, the usual one first."""

    asked: str  #: how a user asks for it
    extra: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]


#: By JAX's name of the platform.
PLUGINS: Final = {
    "cuda": Plugin(
        "--compiler xla-gpu",
        "xla-gpu",
        ("jax-cuda12-plugin", "jax-cuda13-plugin"),
        ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
    ),
    "rocm": Plugin(
        "--compiler xla-gpu for AMD's chips",
        "xla-rocm",
        ("jax-rocm7-plugin",),
        ("jax_plugins.xla_rocm7",),
    ),
    "tpu": Plugin("--compiler xla-tpu", "xla-tpu", ("libtpu",), ("libtpu",)),
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A compiler that is here: "jax-cuda12-plugin 0.10.2", and a sentence if it is an odd one."""

    version: str
    warning: str = ""


def installed(platform: str) -> Installed:
    """The compiler for a platform: its package, by name and version.

    Raises FlintError FL411 where it is missing, in whole or in part, and FL412 where it is of another
    version than jaxlib.
    """
    plugin = PLUGINS[platform]
    found = next((p for p in plugin.packages if _version(p)), plugin.packages[0])
    parts = (found, found.replace("-plugin", "-pjrt"))
    missing = [part for part in parts if not _version(part)]
    if missing or not any(map(_importable, plugin.modules)):
        raise _missing(plugin, (missing or parts)[0])
    if platform == "tpu":
        return Installed(f"{found} {_version(found)}", _odd(found))
    for part in parts:
        _require_same(part)
    return Installed(f"{found} {_version(found)}")


def _require_same(package: str) -> None:
    """JAX takes CUDA's of its own version alone; for ROCm it asks pip for that, and does not look.

    AMD's second builds of a version (0.10.1.post1) are of that version.
    """
    ours, theirs = _version("jaxlib"), _version(package)
    if ours != theirs.partition(".post")[0]:
        raise FlintError(
            "FL412",
            f"{package} is {theirs}, jaxlib is {ours}: JAX takes a plugin of its own version alone",
            help=f'pip install "{package}=={ours}"',
        )


def _odd(package: str) -> str:
    """A sentence about a libtpu that is not the one that this JAX names."""
    wanted = re.compile(rf"{package}==([\d.]+)\.\*")
    for requirement in importlib.metadata.requires("jax") or ():
        if (match := wanted.match(requirement)) and not _begins(_version(package), match[1]):
            return (
                f"{package} is {_version(package)}, and JAX {_version('jax')} asks for "
                f"{match[1]}.*: what it compiles may differ from what runs with this JAX"
            )
    return ""


def _begins(version: str, beginning: str) -> bool:
    return (version + ".").startswith(beginning + ".")


def _missing(plugin: Plugin, package: str) -> FlintError:
    return FlintError(
        "FL411",
        f"{plugin.asked} needs {package}, which is not installed",
        help=f'pip install "flint-ir[{plugin.extra}]"',
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
