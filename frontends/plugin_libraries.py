"""The libraries of JAX's CUDA plugin, loaded in silence where it is installed for `--compiler`.

As they are loaded they write lines about missing drivers, which no setting stops. Here these are left
out; everything else is passed on. JAX itself is not imported: a model file may set its environment
first (`JAX_ENABLE_X64`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOISE = re.compile(
    rb"cudart_stub\.cc:\d+\] Could not find cuda drivers|before absl::InitializeLog"
)
#: Packages of the plugin that hold libraries, those of its PJRT client below another.
_PACKAGES = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_CLIENTS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def load_plugin_libraries() -> None:
    """Load them, if the plugin is here and JAX did not do it before."""
    if "jax" in sys.modules or not (libraries := list(_libraries())):
        return
    with _without_noise():
        for library in libraries:
            with contextlib.suppress(OSError):  # JAX says what is wrong with it, if it needs it
                ctypes.CDLL(str(library))


def _libraries() -> Iterator[Path]:
    names = _PACKAGES if importlib.util.find_spec("jax_plugins") is None else _PACKAGES + _CLIENTS
    for spec in filter(None, map(importlib.util.find_spec, names)):
        for folder in spec.submodule_search_locations or ():
            yield from sorted(Path(folder).glob("*.so"))


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """What libraries write to the standard error, without the lines about drivers."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            os.write(2, b"".join(line for line in said if not _NOISE.search(line)))
