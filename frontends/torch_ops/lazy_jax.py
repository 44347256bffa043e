"""JAX for the table of operators, imported when an operator is first computed.

Recorded programs (`--world`) ask the table what operators cost, where JAX may not be installed.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:

    class _Lazy(ModuleType):
        """A module that is imported when it is first asked for a name."""

        def __getattr__(self, name):
            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    jax, jnp, lax = map(_Lazy, ("jax", "jax.numpy", "jax.lax"))

__all__ = ["jax", "jnp", "lax"]
