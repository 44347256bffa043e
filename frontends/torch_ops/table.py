"""The whole table of operators: importing these modules registers them."""

from __future__ import annotations

from importlib import import_module

#: Modules of this package that register operators.
TABLES = (
    "elementwise",
    "attention",
    "sharding",
)


def load_table() -> None:
    """Register every operator of this package. Operators that users registered already stay."""
    for name in TABLES:
        import_module(f"flint.frontends.torch_ops.{name}")
