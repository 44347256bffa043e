"""What C++ asks the virtual device for while an operator of the backward pass ends with an exception.

The autograd engine leaves a stream of the device before it takes the exception over, and asks the
device's guard, which is Python, for its type. Python calls nothing while an exception is on its
way: the call would end the process, or take the exception's place.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flint.frontends.torch_private import DeviceGuard, private_device_type

Lost = tuple[Any, Any, Any]
# `PyErr_Fetch` takes the exception that is on its way from the interpreter: type, value, traceback.
_PARTS = tuple(ctypes.py_object() for _ in range(3))
_KIND, _VALUE, _TRACEBACK = map(ctypes.byref, _PARTS)
_take = ctypes.pythonapi.PyErr_Fetch
_take.restype = None


class LostExceptions:
    """Exceptions that were on their way when C++ asked the guard; the first is the one that counts."""

    def __init__(self) -> None:
        self._lost: list[Lost] = []

    def guard(self) -> Any:
        """A guard for the device. It has no attributes: finding `type_` among some would fail."""
        lost, device_type = self._lost, private_device_type()

        class Guard(DeviceGuard):
            def type_(self) -> Any:
                _take(_KIND, _VALUE, _TRACEBACK)  # before anything else is called
                if _PARTS[0]:
                    lost.append((_PARTS[0].value, _PARTS[1].value, _PARTS[2].value))
                return device_type

        return Guard()

    def first(self) -> BaseException | None:
        """The first exception since this was asked last."""
        if not self._lost:
            return None
        kind, value, traceback = self._lost[0]
        self._lost.clear()
        made: BaseException = value if isinstance(value, kind) else kind(value)
        return made.with_traceback(traceback)
