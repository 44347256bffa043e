"""Broadcasts take XLA's form before shardings propagate."""

import pytest

pytest.importorskip("jaxlib")
from jaxlib.mlir import ir

from flint.passes.mlir import make_context
from flint.passes.partition.prepare.broadcasts import split_broadcasts


def _after(operand: str, dims: str, result: str) -> list[str]:
    """Operations with their result types that one broadcast becomes."""
    text = f"""func.func @main(%a: tensor<{operand}>) -> tensor<{result}> {{
      %0 = stablehlo.broadcast_in_dim %a, dims = {dims} : (tensor<{operand}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""
    with make_context():
        module = ir.Module.parse(text)
        split_broadcasts(module)
        module.operation.verify()
        body = module.body.operations[0].regions[0].blocks[0]
        ops = [op.operation for op in body][:-1]
        return [f"{op.name.split('.')[1]} {op.results[0].type}" for op in ops]


def test_adding_dimensions_of_size_one_is_a_reshape() -> None:
    assert _after("16x32xf32", "[0, 1]", "16x32x1xf32") == ["reshape tensor<16x32x1xf32>"]
    assert _after("8xf32", "[1]", "1x8xf32") == ["reshape tensor<1x8xf32>"]


def test_stretching_a_dimension_drops_it_first() -> None:
    assert _after("16x1x8xf32", "[0, 1, 2]", "16x4x8xf32") == [
        "reshape tensor<16x8xf32>",
        "broadcast_in_dim tensor<16x4x8xf32>",
    ]


@pytest.mark.parametrize(
    ("operand", "dims", "result"),
    [("f32", "[]", "8xf32"), ("8xf32", "[1]", "4x8xf32"), ("4x8xf32", "[1, 0]", "8x4xf32")],
)
def test_other_broadcasts_stay(operand: str, dims: str, result: str) -> None:
    assert _after(operand, dims, result) == [f"broadcast_in_dim tensor<{result}>"]
