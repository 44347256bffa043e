"""MLCommons Chakra execution traces: `write` a workload, `read` a file, `check` a set of files."""

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
