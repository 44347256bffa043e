"""The whole table of operators: importing the modules of this package registers them."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flint.frontends import torch_ops
from flint.frontends.torch_ops.registry import find_op, known_ops, torch_op


@cache
def load_table() -> None:
    """Register every operator of this package. What users registered before stays."""
    before = {name: find_op(name) for name in known_ops()}
    for module in pkgutil.walk_packages(torch_ops.__path__, f"{torch_ops.__name__}."):
        import_module(module.name)
    for name, function in before.items():
        assert function is not None
        torch_op(name)(function)
