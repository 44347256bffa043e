"""What host code asks of `triton`: sizes of grids, and names that kernels are written with."""

from __future__ import annotations

from typing import Any

__all__ = ["Language", "cdiv", "constexpr", "next_power_of_2", "set_allocator"]


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is no less than n."""
    return 1 << max(n - 1, 0).bit_length()


def set_allocator(allocator: Any) -> None:
    """Memory that kernels may ask for: they do not run."""


class constexpr:
    """A value that is known when a kernel is compiled."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Language:
    """A name of `triton.language`: kernels are not run, so that it says no more than itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Language:
        if name.startswith("__"):
            raise AttributeError(name)
        return Language(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self._name} is only for kernels")

    def __repr__(self) -> str:
        return self._name
