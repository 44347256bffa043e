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

    compiler: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]


PLUGINS: Final = {
    "xla-gpu": Plugin(
        "xla-gpu",
        ("jax-cuda12-plugin", "jax-cuda13-plugin"),
        ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
    ),
    "xla-tpu": Plugin("xla-tpu", ("libtpu",), ("libtpu",)),
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A compiler that is here: "jax-cuda12-plugin 0.10.2", and a sentence if it is an odd one."""

    version: str
    warning: str = ""


def installed(compiler: str) -> Installed:
    """The compiler's package, by name and version.

    Raises FlintError FL411 where it is missing, in whole or in part, and FL412 where JAX would not
    load it because it is of another version.
    """
    plugin = PLUGINS[compiler]
    found = next((p for p in plugin.packages if _version(p)), "")
    if not found or not any(map(_importable, plugin.modules)):
        raise _missing(plugin, found)
    if compiler == "xla-gpu":
        _require_pjrt(plugin, found)
        _require_same(found)
        return Installed(f"{found} {_version(found)}")
    return Installed(f"{found} {_version(found)}", _odd(found))


def _require_pjrt(plugin: Plugin, found: str) -> None:
    library = found.replace("-plugin", "-pjrt")
    if not _version(library):
        raise _missing(plugin, library)


def _require_same(package: str) -> None:
    """JAX takes the plugin of its own version alone."""
    ours, theirs = _version("jaxlib"), _version(package)
    if ours != theirs:
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


def _missing(plugin: Plugin, found: str) -> FlintError:
    what = found or plugin.packages[0]
    return FlintError(
        "FL411",
        f"--compiler {plugin.compiler} needs {what}, which is not installed",
        help=f'pip install "flint-ir[{plugin.compiler}]"',
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
