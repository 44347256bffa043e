"""JAX as a capture needs it, whatever the user has set; afterwards it is as it was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from flint.errors import FlintError, nearest
from flint.frontends.jax_step.gpu_kernels import without_gpu
from flint.passes.jax_private import PLATFORM_LOG, setting

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    AnyMesh: TypeAlias = AbstractMesh | Mesh


@contextmanager
def capturing_on(abstract: AbstractMesh) -> Iterator[None]:
    """Trace and lower for `abstract`, a `jax.sharding.AbstractMesh`, and for no other mesh.

    Shardy is on (without it, JAX writes shardings that no partitioner here reads), jitted functions
    are traced whole, a backend starts, kernels of GPUs need none, and a mesh that was set around
    the call (`jax.set_mesh`) is not seen. What changes numbers (64 bits, the precision of products,
    random numbers) stays as the user set it. Only this thread sees the difference, except that JAX
    keeps running on the CPU where it could not start before.
    """
    import jax

    start_backend()
    with ExitStack() as stack:
        stack.enter_context(setting("use_shardy_partitioner", True))
        stack.enter_context(setting("disable_jit", False))
        stack.enter_context(jax.set_mesh(None))
        stack.enter_context(_MESHES.alike())
        stack.enter_context(jax.sharding.use_abstract_mesh(abstract))
        stack.enter_context(without_gpu())
        yield


def start_backend() -> None:
    """Start JAX, on the CPU where none of the platforms that the user named has a device here.

    `JAX_PLATFORMS=cuda` is common in containers, and lowering asks for a default backend. Where no
    platform is named and no accelerator is there, plugins are not tried: XLA's compilers come with
    some, which would say at length that they find no device.
    """
    import jax

    if not jax.config.jax_platforms and not _has_accelerator():
        return _start_on_cpu()
    try:
        jax.devices()
    except (AssertionError, RuntimeError):
        _start_on_cpu()


def _start_on_cpu() -> None:
    """Start JAX on the CPU if it runs nowhere yet; what the user named stays named.

    What JAX says of plugins is omitted: ROCm's raises where there is no GPU.
    """
    import jax

    named, log = jax.config.jax_platforms, logging.getLogger(PLATFORM_LOG)
    jax.config.update("jax_platforms", "cpu")
    was_off, log.disabled = log.disabled, True
    try:
        jax.devices()
    finally:
        log.disabled = was_off
        jax.config.update("jax_platforms", named)


def _has_accelerator() -> bool:
    """Whether the system has a device file of a GPU or TPU."""
    patterns = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")
    return any(True for pattern in patterns for _ in Path("/dev").glob(pattern))


class _Meshes:
    """Makes meshes equal that differ in their devices alone, for threads that capture.

    JAX compares the mesh of a `shard_map` or of explicit axes with the one of the program, the kind
    of device included. A mesh of real CPU devices, of the same axes, means the virtual one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread = threading.local()
        self._originals: dict[type[AnyMesh], property] = {}

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Active in this thread, until the last of nested uses ends."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        try:
            yield
        finally:
            self._thread.depth = depth
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stop()

    def _start(self) -> None:
        from jax.sharding import AbstractMesh, Mesh

        for kind in (Mesh, AbstractMesh):
            self._originals[kind] = kind.__dict__["abstract_mesh"]
            kind.abstract_mesh = property(self._abstract_mesh(self._originals[kind]))

    def _stop(self) -> None:
        for kind, original in self._originals.items():
            kind.abstract_mesh = original
        self._originals.clear()

    def _abstract_mesh(self, original: property) -> Callable[[AnyMesh], AbstractMesh]:
        def abstract_mesh(mesh: AnyMesh) -> AbstractMesh:
            found = original.__get__(mesh, type(mesh))
            if getattr(self._thread, "depth", 0) and found.abstract_device is not None:
                return found.update(abstract_device=None)
            return found

        return abstract_mesh


_MESHES = _Meshes()


#: Platforms that a step can be lowered for, and JAX's names of them.
PLATFORMS = {"cuda": "cuda", "gpu": "cuda", "rocm": "rocm", "tpu": "tpu", "cpu": "cpu"}


def platform_name(name: str) -> str:
    """JAX's name of a platform. Raises FlintError FL207 for one that JAX does not lower for."""
    if name not in PLATFORMS:
        raise FlintError(
            "FL207",
            f"there is no platform '{name}'{nearest(name, list(PLATFORMS))}",
            help=f"choose one of {', '.join(PLATFORMS)}",
        )
    return PLATFORMS[name]
