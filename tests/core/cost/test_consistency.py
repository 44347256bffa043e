"""The check that an operation's sharding rule holds for the shardings around it."""

import pytest

from flint.ir.mesh import Mesh
from flint.ir.program import Collective, Flag, Row
from flint.passes.extract.walk import extract
from flint.passes.mlir import make_context, write_bytecode

pytest.importorskip("jaxlib")
MESH = Mesh.parse("data=2,model=4")
DOT_RULE = "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>"
SPLIT_RULE = "#sdy.op_sharding_rule<([ij])->([i, j]) {i=2, j=8}>"


def extracted(body: str) -> list[Row]:
    """The rows of a module already partitioned."""
    text = f'module {{ sdy.mesh @mesh = <["data"=2, "model"=4]>\n{body}\n}}'
    from jaxlib.mlir import ir

    with make_context():
        bytecode = write_bytecode(ir.Module.parse(text))
    program = extract(bytecode, MESH)
    return [program.row(i) for i in range(len(program))]


def doubts(body: str) -> list[tuple[str, str]]:
    """(opcode, cause) of the doubtful rows of a module already partitioned."""
    return [(r.opcode, r.cause) for r in extracted(body) if r.flags & Flag.DOUBTFUL]


def sharded(*dims: str) -> str:
    return "<@mesh, [" + ", ".join("{" + d + "}" for d in dims) + "]>"


def argument(number: int, kind: str, *dims: str) -> str:
    return f"%arg{number}: {kind} {{sdy.sharding = #sdy.sharding{sharded(*dims)}}}"


def dot(lhs: list[str], rhs: list[str], result: list[str], after: str = "return %0") -> str:
    return f"""
    func.func public @main({argument(0, "tensor<8x32xf32>", *lhs)},
                           {argument(1, "tensor<32x16xf32>", *rhs)}) -> tensor<8x16xf32> {{
      %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
        {{sdy.sharding = #sdy.sharding_per_value<[{sharded(*result)}]>,
          sdy.sharding_rule = {DOT_RULE}}}
        : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
      {after} : tensor<8x16xf32>
    }}"""


ALL_REDUCE = """%1 = sdy.all_reduce {"model"} %0 out_sharding=<@mesh, [{}, {}]> : tensor<8x16xf32>
      return %1"""


def test_a_product_that_is_reduced_is_fine() -> None:
    assert doubts(dot(["", '"model"'], ['"model"', ""], ["", ""], ALL_REDUCE)) == []


def test_a_sum_that_nothing_reduces() -> None:
    ((opcode, cause),) = doubts(dot(["", '"model"'], ['"model"', ""], ["", ""]))
    assert opcode == "stablehlo.dot_general"
    assert cause.startswith("a sum over model is never reduced")


def test_a_sum_over_two_axes_of_which_one_is_reduced() -> None:
    both = '"data", "model"'
    ((_, cause),) = doubts(dot(["", both], [both, ""], ["", ""], ALL_REDUCE))
    assert cause.startswith("a sum over data is never reduced")


def test_operands_that_disagree_on_the_contracted_dimension() -> None:
    ((_, cause),) = doubts(dot(["", '"model"'], ["", ""], ["", ""], ALL_REDUCE))
    assert cause.startswith("factor k is split differently")
    assert '[{}, {"model"}] [{}, {}] [{}, {}] under' in cause


def test_a_result_that_disagrees_with_its_operand() -> None:
    ((_, cause),) = doubts(dot(['"data"', ""], ["", ""], ["", ""]))
    assert cause.startswith("factor i is split differently")


def split(operand: str, *result: str) -> str:
    # An identity with the rule of a reshape: reshapes themselves are views and run nothing.
    return f"""
    func.func public @main({argument(0, "tensor<16xf32>", operand)}) -> tensor<2x8xf32> {{
      %0 = stablehlo.custom_call @split(%arg0)
        {{sdy.sharding = #sdy.sharding_per_value<[{sharded(*result)}]>,
          sdy.sharding_rule = {SPLIT_RULE}}} : (tensor<16xf32>) -> tensor<2x8xf32>
      return %0 : tensor<2x8xf32>
    }}"""


def test_an_axis_that_two_factors_share_is_divided_into_sub_axes() -> None:
    assert doubts(split('"model"', '"model":(1)2', '"model":(2)2')) == []
    assert doubts(split('"data", "model"', '"data"', '"model"')) == []


def test_a_sub_axis_on_the_wrong_factor() -> None:
    ((_, cause),) = doubts(split('"model"', '"model":(2)2', '"model":(1)2'))
    assert cause.startswith("factor i is split differently")


def test_what_must_be_whole_and_is_not() -> None:
    rule = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16} need_replication={j}>"
    body = f"""
    func.func public @main({argument(0, "tensor<8x16xf32>", "", '"model"')}) -> tensor<8x16xf32> {{
      %0 = stablehlo.custom_call @rows(%arg0)
        {{sdy.sharding = #sdy.sharding_per_value<[{sharded("", '"model"')}]>,
          sdy.sharding_rule = {rule}}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }}"""
    ((opcode, cause),) = doubts(body)
    assert opcode == "custom_call.rows"
    assert cause.startswith("factor j must be whole and is split")


def test_an_argmax_whose_parts_nothing_puts_together() -> None:
    """As Shardy of jaxlib 0.12 leaves it; 0.10 has an all-reduce after each result."""
    rule = "#sdy.op_sharding_rule<([i, j], [i, j], [], [])->([i], [i]) {i=8, j=32} reduction={j}>"
    module = f"""
    func.func public @main({argument(0, "tensor<8x32xf32>", '"data"', '"model"')},
                           {argument(1, "tensor<8x32xi32>", '"data"', '"model"')}) -> tensor<8xi32> {{
      %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.reduce(%arg0 init: %least), (%arg1 init: %zero) across dimensions = [1]
        {{sdy.sharding = #sdy.sharding_per_value<[{sharded('"data"')}, {sharded('"data"')}]>,
          sdy.sharding_rule = {rule}}}
        : (tensor<8x32xf32>, tensor<8x32xi32>, tensor<f32>, tensor<i32>)
          -> (tensor<8xf32>, tensor<8xi32>)
        reducer(%a: tensor<f32>, %b: tensor<f32>) (%i: tensor<i32>, %j: tensor<i32>) {{
          %1 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %2 = stablehlo.select %1, %a, %b : tensor<i1>, tensor<f32>
          %3 = stablehlo.select %1, %i, %j : tensor<i1>, tensor<i32>
          stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
        }}
      return %0#1 : tensor<8xi32>
    }}"""
    rows = extracted(module)
    values, indices = (r for r in rows if r.collective is Collective.ALL_GATHER)
    assert (values.comm_bytes, indices.comm_bytes) == (4 * 4, 4 * 4)  # 8 rows over data=2
    assert str(indices.group) == "model" and values.number in indices.deps
    assert indices.number in rows[-1].deps
    assert doubts(module) == []
