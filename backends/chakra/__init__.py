"""MLCommons Chakra execution traces: `write` a workload, `read` a file, `check` a set of files.

Names are loaded when they are asked for: the rules of ASTRA-sim read what a trace is, and the writer and
the check ask the rules.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from flint.backends.chakra.checking.checker import check
    from flint.backends.chakra.checking.findings import CODES, CheckReport, Finding
    from flint.backends.chakra.reading.reader import TraceFile, read
    from flint.backends.chakra.writing.expand import Nodes, expand
    from flint.backends.chakra.writing.writer import WriteReport, write

__all__ = [
    "CODES",
    "CheckReport",
    "Finding",
    "Nodes",
    "TraceFile",
    "WriteReport",
    "check",
    "expand",
    "read",
    "write",
]

_MODULES = {
    "checking.checker": ("check",),
    "checking.findings": ("CODES", "CheckReport", "Finding"),
    "reading.reader": ("TraceFile", "read"),
    "writing.expand": ("Nodes", "expand"),
    "writing.writer": ("WriteReport", "write"),
}


def __getattr__(name: str) -> _Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(_import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
