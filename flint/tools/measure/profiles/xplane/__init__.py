"""Profiles of JAX and XLA: `*.xplane.pb`, and the Chrome JSON that jax.profiler writes beside it."""

from flint.tools.measure.profiles.xplane.chrome import read as read_chrome
from flint.tools.measure.profiles.xplane.chrome import recognizes as recognizes_chrome
from flint.tools.measure.profiles.xplane.reader import read, recognizes

__all__ = ["read", "read_chrome", "recognizes", "recognizes_chrome"]
