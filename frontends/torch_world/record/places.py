"""Where in the user's code an operator comes from."""

from __future__ import annotations

import os
import sys
import sysconfig
import types

import torch

import flint

_LIBRARY = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_SITE = tuple(
    os.path.realpath(sysconfig.get_paths()[key]) + os.sep for key in ("purelib", "platlib")
)
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
#: Flint's own folders; in a checkout, three of them lie beside the package.
_OWN = (
    os.path.dirname(os.path.realpath(flint.__file__)) + os.sep,
    *(
        os.path.realpath(os.path.join(root, part)) + os.sep
        for root in flint.__path__
        for part in ("cli", "frontends", "passes", "backends")
    ),
)


class Places:
    """`file.py:line` of the innermost frame that is neither PyTorch's, Python's nor Flint's.

    Model libraries count as the user's code: their lines say more than the call of the model.
    """

    def __init__(self) -> None:
        self._files: dict[types.CodeType, str] = {}

    def current(self) -> str:
        """The place of what runs now, "" if no frame is the user's."""
        frame: types.FrameType | None = sys._getframe(1)
        files = self._files
        while frame is not None:
            code = frame.f_code
            file = files.get(code)
            if file is None:
                file = files[code] = _user_file(code.co_filename)
            if file:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _user_file(filename: str) -> str:
    if filename.startswith("<"):
        return ""
    path = os.path.realpath(filename)
    if path.startswith((_TORCH, *_OWN)):
        return ""
    if path.startswith(_LIBRARY) and not path.startswith(_SITE):
        return ""
    return os.path.basename(path)
