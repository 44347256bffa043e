"""How PyTorch would multiply f32 on a GPU: settings of the process that the program runs in.

`torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul` and `torch.backends.cudnn` (their
`allow_tf32` and `fp32_precision`). Unless a program sets them, products of matrices are in full f32
and convolutions in TF32 (docs.pytorch.org, "CUDA semantics").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flint.ir.product_types import SETTING
from flint.passes.mlir import FRONTEND_ATTRIBUTES, is_attention

if TYPE_CHECKING:
    from jaxlib.mlir import ir


IEEE, TF32 = "ieee", "tf32"
_PRODUCTS = frozenset({"stablehlo.dot_general", "chlo.ragged_dot"})


_ALIKE = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "linear", "convolution"), (0, 1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm"), (1, 2)),
}


def require_one_type(name: str, args: Sequence[Any]) -> None:
    """Raise RuntimeError for a product `aten::mm`, ... of tensors that have two types.

    PyTorch's kernels raise it; its functions that find out shapes only do not.
    """
    places = _ALIKE.get(name.removeprefix("aten::"), ())
    inputs = [args[i].dtype for i in places if i < len(args) and hasattr(args[i], "dtype")]
    if len(set(inputs)) > 1:
        types = " != ".join(map(str, inputs))
        raise RuntimeError(
            f"expected both inputs of {name} to have the same dtype, but got {types}"
        )


def matmul_precision() -> str:
    """`ieee` or `tf32`: what products of f32 matrices, attention included, are done in now."""
    import torch

    return TF32 if torch.backends.cuda.matmul.fp32_precision == TF32 else IEEE


def convolution_precision() -> str:
    """The same of convolutions, which cuDNN does."""
    import torch

    convolutions: Any = torch.backends.cudnn.conv
    return TF32 if convolutions.fp32_precision == TF32 else IEEE


def mark_products(module: ir.Module) -> None:
    """Write the settings on every operation of a module that multiplies f32."""
    from jaxlib.mlir import ir

    matmul, convolution = matmul_precision(), convolution_precision()

    def visit(op: ir.Operation) -> ir.WalkResult:
        how = _how(op, matmul, convolution)
        if how:
            known = op.attributes.get(FRONTEND_ATTRIBUTES, ())
            said = {a.name: a.attr for a in known} | {SETTING: ir.StringAttr.get(how)}
            op.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(said)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)


def _how(op: ir.Operation, matmul: str, convolution: str) -> str:
    """How an operation multiplies, or "" if it multiplies no f32."""
    name = op.name
    attends = name == "stablehlo.custom_call" and is_attention(
        op.attributes["call_target_name"].value
    )
    if not (attends or name in _PRODUCTS or name == "stablehlo.convolution"):
        return ""
    if not any(str(v.type).endswith("xf32>") for v in op.operands):
        return ""
    return convolution if name == "stablehlo.convolution" else matmul
