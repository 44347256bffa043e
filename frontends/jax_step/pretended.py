"""What JAX says of its devices while a step is traced: those of the mesh, not of this machine.

Libraries choose kernels by `jax.default_backend()`. JAX itself asks elsewhere, so that it still
traces on the CPU. A device object cannot be made up: who asks for one gets this machine's, and the
capture says so.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError
from flint.io.user_places import calling_place
from flint.ir.mesh import Mesh
from flint.passes.jax_private import pmap_module

#: What `jax.default_backend()` says of a platform.
_BACKENDS = {"cuda": "gpu", "rocm": "gpu", "tpu": "tpu", "cpu": "cpu"}


class _Replaced:
    """A function of a module that answers otherwise in the threads that ask for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._users = 0
        self._thread = threading.local()

    @contextmanager
    def by(self, module: Any, answer: Callable[..., Any]) -> Iterator[None]:
        """`answer(original, *args, **kwargs)` is asked in this thread until the end."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = getattr(module, self._name)
                setattr(module, self._name, self._asking(self._original))
        before = getattr(self._thread, "answer", None)
        self._thread.answer = answer
        try:
            yield
        finally:
            self._thread.answer = before
            with self._lock:
                self._users -= 1
                if not self._users:
                    setattr(module, self._name, self._original)

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = getattr(self._thread, "answer", None)
            return (
                original(*args, **kwargs) if answer is None else answer(original, *args, **kwargs)
            )

        return asked


_BACKEND = _Replaced("default_backend")
_COUNTS = [_Replaced(name) for name in ("device_count", "local_device_count")]
_DEVICES = [_Replaced(name) for name in ("devices", "local_devices")]
_DEFAULT_DEVICE = _Replaced("get_default_device")
_PMAP = (_Replaced("_get_mesh_devices"), _Replaced("_cached_shard_map"))


@contextmanager
def asking_for(platform: str, devices: int, warnings: list[str]) -> Iterator[None]:
    """JAX's public questions are answered for so many devices of a platform (JAX's name of it).

    `warnings` gets a sentence where the program asks for devices themselves.
    """
    import jax
    from jax.extend import backend

    said: dict[str, None] = {}

    def these(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not (args or kwargs) and platform != "cpu":
            said.setdefault(calling_place() or "a library")
        return original(*args, **kwargs)

    def count(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if args or kwargs else devices

    with ExitStack() as stack:
        stack.enter_context(_BACKEND.by(jax, lambda _: _BACKENDS[platform]))
        for one in _COUNTS:
            stack.enter_context(one.by(jax, count))
        for one in _DEVICES:
            stack.enter_context(one.by(jax, these))
        stack.enter_context(_DEFAULT_DEVICE.by(backend, these))
        yield
    if said:
        warnings.append(
            f"the step asks which devices exist ({', '.join(list(said)[:3])}): it saw this "
            f"machine's CPU, and may have chosen other kernels than for {platform}; "
            "jax.default_backend() and jax.device_count() answer for the mesh, and a script "
            "that is captured with --world sees the devices of a chip"
        )


# pmap -----------------------------------------------------------------------------------------


#: What `jax.pmap` calls an axis without a name.
UNNAMED = "_internal_pmap_axis_name"


@dataclass
class PmapAxis:
    """What a pmapped function calls its axis, "" until it is traced."""

    axis: str = ""


@contextmanager
def pmapped_over(mesh: Mesh) -> Iterator[PmapAxis]:
    """`jax.pmap` finds as many devices as `mesh` has. Gives the name of the axis that it asks for.

    Tracing raises FlintError FL107 where the mesh is not one axis of the mapped size.
    """
    import jax

    over = PmapAxis()

    def devices(_: object, __: object, ___: object, mapped: int, *____: object) -> tuple[Any, ...]:
        if len(mesh.names) != 1 or mapped != mesh.size:
            raise FlintError(
                "FL107",
                f"jax.pmap maps over one axis of {mapped} devices, but the mesh is {mesh}",
                place=calling_place(),
                help=f"capture it for a mesh of one axis with {mapped} devices",
            )
        return (jax.local_devices(backend="cpu")[0],) * mapped

    def mapped(original: Callable[..., Any], *args: Any) -> Any:
        *first, axis = args
        if axis == UNNAMED and len(mesh.names) == 1:
            axis = mesh.names[0]
        over.axis = str(axis)
        return original(*first, axis)

    module = pmap_module()
    with _PMAP[0].by(module, devices), _PMAP[1].by(module, mapped):
        yield over
