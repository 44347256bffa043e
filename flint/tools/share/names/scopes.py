"""Neutral scopes that estimates read as they read the original ones.

Two things of a scope change an estimate: which layer it says that a row is of (its first component
that ends with a number, `backends.cost.simulate.layers`) and which kernel (its first component that
begins with `kernel.`, `passes.fusion.roles`). Rows that are alike in both have one neutral scope.
"""

from __future__ import annotations

from collections.abc import Iterable

from flint.backends.cost.simulate.layers import numbered_prefix
from flint.passes.fusion.roles import kernel_prefix


def neutral_scopes(scopes: Iterable[str]) -> dict[str, str]:
    """For each scope its neutral word; "" where it says neither a layer nor a kernel."""
    layers: dict[str, int] = {}
    kernels: dict[str, int] = {}
    return {scope: _neutral(scope, layers, kernels) for scope in dict.fromkeys(scopes)}


def _neutral(scope: str, layers: dict[str, int], kernels: dict[str, int]) -> str:
    layer, kernel = numbered_prefix(scope), kernel_prefix(scope)
    if not kernel:
        return _layer(layer, layers) if layer else ""
    number = kernels.setdefault(kernel, len(kernels))
    if layer == kernel:
        return f"kernel.{number}"  # it ends with a number: a layer by itself, too
    word = f"kernel.{number}_"
    if not layer:
        return word
    parts = [_layer(layer, layers), word]
    return "/".join(parts if len(layer) < len(kernel) else reversed(parts))


def _layer(prefix: str, layers: dict[str, int]) -> str:
    return f"scope{layers.setdefault(prefix, len(layers))}"
