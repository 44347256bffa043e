"""Execution traces: PyTorch's, alone or linked with times, and Chakra's of any producer."""

from flint.tools.measure.profiles.execution_trace.chakra import read as read_chakra
from flint.tools.measure.profiles.execution_trace.chakra import recognizes as recognizes_chakra
from flint.tools.measure.profiles.execution_trace.join import paired
from flint.tools.measure.profiles.execution_trace.pytorch import read, recognizes

__all__ = ["paired", "read", "read_chakra", "recognizes", "recognizes_chakra"]
