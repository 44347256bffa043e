"""MLCommons Chakra execution traces: `write` a workload, `read` a file, `check` a set of files."""

from flint.backends.chakra.checker import check
from flint.backends.chakra.expand import Nodes, expand
from flint.backends.chakra.findings import CODES, CheckReport, Finding
from flint.backends.chakra.reader import TraceFile, read
from flint.backends.chakra.writer import WriteReport, write

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
