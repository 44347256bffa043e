"""setuptools' build backend, whose editable installations type checkers can follow.

setuptools makes `flint` importable by an import hook, because its folders lie apart
(docs/decisions/0001-layout-and-links.md). Type checkers run no hooks: to them the package would be
unknown, and everything that comes from it `Any`. They do read directories named in `.pth` files, so
the wheel gets one, that names the directory in which `flint` lies alone.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta as _setuptools
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

#: Holds a link to `flint` and nothing else: the root would make `passes` and `tests` importable.
_SOURCES = Path(__file__).resolve().parent / ".editable"


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """As setuptools does it, and a `.pth` file where the checkout has its links (PEP 660)."""
    name: str = _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)
    if (_SOURCES / "flint" / "passes").is_dir():  # not on Windows, not in an unpacked sdist
        _add(Path(wheel_directory, name), "flint_ir_sources.pth", os.fsencode(_SOURCES) + b"\n")
    return name


def _add(wheel: Path, name: str, content: bytes) -> None:
    """Put a file into a wheel, and into its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        for member, data in members:
            if member.filename.endswith(".dist-info/RECORD"):
                data += f"{name},sha256={digest},{len(content)}\n".encode()
            archive.writestr(member, data)
