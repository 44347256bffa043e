"""Stands in for `fused_norm`, a package of CUDA kernels."""

from __future__ import annotations

from flint.frontends.torch_world.packages.package import Package

PACKAGE = Package(
    name="fused_norm",
    version="1.0",
    distribution="fused-norm",
    source="flint_plugin",
    modules={"fused_norm": ("fused_norm",)},
    namespace="fused_norm",
)
