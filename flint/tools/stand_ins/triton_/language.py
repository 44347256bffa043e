"""`triton.language`: whatever a kernel's source names."""

from __future__ import annotations

from flint.tools.stand_ins.triton_.host import Language, constexpr

__all__ = ["__getattr__", "constexpr"]


def __getattr__(name: str) -> Language:
    """Any name that has no underscores around it."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Language(f"triton.language.{name}")
