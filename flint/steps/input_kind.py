"""What a file given to `flint capture` contains, by its suffix and by its first bytes."""

from __future__ import annotations

import errno
import re
from enum import Enum
from pathlib import Path

from flint.errors import FlintError
from flint.io.files import open_regular


class InputKind(Enum):
    """A kind of file that Flint captures."""

    PYTHON = "a Python model file"
    STABLEHLO = "a StableHLO module"
    HLO = "an XLA HLO module"


_SUFFIXES = {
    ".py": InputKind.PYTHON,
    ".mlir": InputKind.STABLEHLO,
    ".mlirbc": InputKind.STABLEHLO,
    ".bc": InputKind.STABLEHLO,
    ".hlo": InputKind.HLO,
    ".pb": InputKind.HLO,
    ".txt": InputKind.HLO,
}
_KNOWN = ".py, .mlir, .mlirbc, .bc, .hlo, .txt or .pb"
_HEAD_BYTES = 2**22
#: Begins the portable artifact inside what `jax.export.Exported.serialize` returns.
_EXPORTED = b"ML\xefR\rStableHLO_v"


def input_kind(path: Path) -> InputKind:
    """Say what `path` contains. Unmistakable content takes precedence over the suffix.

    MLIR bytecode starts with `ML\\xefR`, and so does the artifact inside an exported function of
    JAX; HLO text with `HloModule`; MLIR text has an operation `module`. Raises FlintError FL301 if
    the file cannot be read or is empty, FL210 if Flint does not capture this kind.
    """
    head = _read_head(path)
    kind = _by_content(head) or _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise FlintError(
            "FL210",
            f"{path} is not a kind of file that flint captures",
            help=f"give a {_KNOWN} file",
        )
    return kind


#: What an entry needs: Flint itself, and its mark or one of its steps.
_IMPORT = re.compile(rb"^[^\n#]*\bimport\b[^\n]*|^\s*from\s+flint\b[^\n]*", re.MULTILINE)
_MARK = re.compile(rb"\bentry\b|\b(?:Step|TorchStep|WorldStep|Pipeline|Disaggregated)\(")


def marks_entry(path: Path) -> bool:
    """Whether the text of a Python file imports Flint and marks an entry, or makes a step."""
    head = _read_head(path)
    return b"flint" in b"".join(_IMPORT.findall(head)) and _MARK.search(head) is not None


def holds_program(path: Path) -> bool:
    """Whether a file is StableHLO or XLA HLO by its content. Raises FlintError FL301."""
    return _by_content(_read_head(path)) is not None


def _read_head(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        help_ = f"give a {_KNOWN} file" if error.errno == errno.EINVAL else None
        raise FlintError("FL301", f"cannot read {path}: {error.strerror}", help=help_) from error
    if not head.strip():
        raise FlintError("FL301", f"{path} is empty")
    return head


def _by_content(head: bytes) -> InputKind | None:
    if head.startswith(b"ML\xefR") or _EXPORTED in head:
        return InputKind.STABLEHLO
    code = re.sub(rb"\A(?:\s+|//[^\n]*\n)+", b"", head)
    if code.startswith(b"HloModule"):
        return InputKind.HLO
    if re.match(rb"module\b[^=\n]*\{|#\w+\s*=\s*loc\(|\"builtin\.module\"", code):
        return InputKind.STABLEHLO
    return None
