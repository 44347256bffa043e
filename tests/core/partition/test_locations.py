"""What MLIR locations say, and that each is read once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jaxlib", reason="locations are MLIR's")

from flint.passes.locations import Locations, decode_location
from flint.passes.mlir import make_context

MODULE = """
    #frame = loc("step"("/user/model.py":9:1))
    #inner = loc("norm"("/user/layers.py":4:1))
    #call = loc(callsite(#inner at #frame))
    #first = loc("jit(step)/a/mul"(#call))
    #second = loc("jit(step)/b/mul"(#call))
    #fused = loc(fused["jit(step)/c/mul"(#inner), "jit(step)/d/mul"(#frame)])
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.abs %x : tensor<8xf32> loc(#first)
      %1 = stablehlo.abs %0 : tensor<8xf32> loc(#first)
      %2 = stablehlo.abs %1 : tensor<8xf32> loc(#second)
      %3 = stablehlo.abs %2 : tensor<8xf32> loc(callsite(#fused at #frame))
      return %3 : tensor<8xf32> loc(unknown)
    }
"""


def _locations() -> list[Any]:
    from jaxlib.mlir import ir

    module = ir.Module.parse(MODULE)
    block = module.body.operations[0].regions[0].blocks[0]
    return [op.operation.location for op in block]


def test_names_are_the_last_and_places_the_innermost() -> None:
    with make_context():
        assert [decode_location(location) for location in _locations()] == [
            ("jit(step)/a/mul", "layers.py:4"),
            ("jit(step)/a/mul", "layers.py:4"),
            ("jit(step)/b/mul", "layers.py:4"),
            ("jit(step)/c/mul", "layers.py:4"),
            ("", ""),
        ]


def test_each_distinct_location_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    with make_context():
        locations, really = Locations(), Locations._read

        def noted(self: Locations, location: Any) -> Any:
            read.append(str(location))
            return really(self, location)

        monkeypatch.setattr(Locations, "_read", noted)
        for location in _locations() * 2:
            locations.decode(location)
    assert len(read) == len(set(read))
    assert sum("layers.py" in text and "jit(" not in text for text in read) == 3  # file, name, call
