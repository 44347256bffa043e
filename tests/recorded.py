"""Numbers that were recorded with one version of jaxlib are compared with that version only."""

from __future__ import annotations

import importlib.metadata

import pytest

#: The version in constraints.txt when they were recorded; in others XLA and JAX may do otherwise.
JAXLIB = "0.10.2"
recorded_version_only = pytest.mark.skipif(
    importlib.metadata.version("jaxlib") != JAXLIB, reason=f"recorded with jaxlib {JAXLIB}"
)
