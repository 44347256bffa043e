"""Functions of the user traced on abstract arrays: shapes and jaxprs, nothing executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_program import abstract_mesh
from flint.frontends.jax_settings import capturing_on
from flint.frontends.user_code import user_error
from flint.mesh import Mesh


def traced(
    function: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh, name: str, place: str | None
) -> tuple[Any, Any]:
    """The jaxpr of `function(*args)` and the pytree of what it returns, as abstract arrays.

    Raises FlintError FL203 where the function raised.
    """
    import jax

    with capturing_on(abstract_mesh(mesh)):
        try:
            jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        except FlintError:
            raise
        except (Exception, SystemExit) as error:
            raise user_error(error, f"tracing {name}", place) from error
    return jaxpr, shapes
