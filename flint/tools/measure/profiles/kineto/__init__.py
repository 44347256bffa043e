"""PyTorch's profiler: Kineto's JSON, of any version, CUDA or ROCm."""

from flint.tools.measure.profiles.kineto.read import read, recognizes

__all__ = ["read", "recognizes"]
