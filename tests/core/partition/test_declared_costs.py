"""Kernels of a program's own: what it declares of their cost is what every route counts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import flint
from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Program, Row
from flint.passes.work import declared
from flint.passes.work.declared import ArrayType, KernelCall

X = ArrayType((64, 32), "float32", 64 * 32 * 4)
CALL = KernelCall((X,), (X,), {"steps": 7})


def rows(program: Program, names: str) -> list[Row]:
    found = map(program.row, range(len(program)))
    return [r for r in found if names in r.opcode]


# what a declaration gives -----------------------------------------------------------------------


@pytest.mark.parametrize("given", [12, flint.CostEstimate(12), {"flops": 12.0}])
def test_flops_alone_are_an_estimate(given: object) -> None:
    flint.cost_of("declared_kernel")(lambda call: given)
    found = declared.declaration_of("declared_kernel")
    assert found is not None
    work = found.work("declared_kernel", CALL)
    assert (work.op, work.flops, work.operand_bytes) == (OpClass.DECLARED, 12, None)


def test_the_estimate_of_pallas_is_one() -> None:
    pl = pytest.importorskip("jax.experimental.pallas")
    estimate = pl.CostEstimate(flops=12, transcendentals=3, bytes_accessed=20_000)
    flint.cost_of("declared_kernel")(lambda call: estimate)
    work = declared.declaration_of("declared_kernel").work("declared_kernel", CALL)  # type: ignore[union-attr]
    assert (work.flops, work.dims, work.operand_bytes) == (12, (1, 3, 1, 1), 20_000 - X.num_bytes)


@pytest.mark.parametrize(
    ("op_class", "flops", "dims"),
    [
        (OpClass.FUNCTION, 2048, (0, 0, 0, 0)),
        (OpClass.COPY, 0, (0, 0, 0, 0)),
        (OpClass.REDUCE, 2048, (1, 64, 1, 32)),
    ],
)
def test_a_class_tells_the_work(op_class: OpClass, flops: int, dims: tuple[int, ...]) -> None:
    row = ArrayType((64,), "float32", 256)
    result = row if op_class is OpClass.REDUCE else X
    work = declared.Declaration(op_class).work("declared_kernel", KernelCall((X,), (result,)))
    assert (work.op, work.flops, work.dims) == (op_class, flops, dims)


def test_a_class_keeps_the_bytes_that_are_declared() -> None:
    cost = flint.CostEstimate(5, bytes_accessed=20_000)
    work = declared.Declaration(OpClass.FUNCTION, lambda _: cost).work("declared_kernel", CALL)
    assert (work.op, work.flops, work.operand_bytes) == (OpClass.FUNCTION, 5, 20_000 - X.num_bytes)


@pytest.mark.parametrize("op_class", [OpClass.DECLARED, OpClass.FUNCTION])
def test_a_kernel_that_talks_to_other_devices_has_no_price(op_class: OpClass) -> None:
    cost = {"flops": 5, "remote_bytes_transferred": 64}
    work = declared.Declaration(op_class, lambda _: cost).work("declared_kernel", CALL)
    assert work.unpriced


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"cost_estimate": {"flops": 3}}, ({"flops": 3}, {})),
        ({"custom_call_config": {"cost_estimate": {"flops": 3}}}, ({"flops": 3}, {})),
        ({"custom_call_config": 3, "attributes": "x"}, (None, {})),
        ({"attributes": {"steps": 7}}, (None, {"steps": 7})),
    ],
)
def test_calls_carry_what_they_declare_in_their_configuration(
    config: dict[str, Any], found: tuple[object, dict[str, Any]]
) -> None:
    assert declared.declared_in(config) == found


@pytest.mark.parametrize("op_class", [OpClass.MATMUL, OpClass.ATTENTION, OpClass.UNKNOWN])
def test_classes_that_need_more_than_sizes_are_refused(op_class: OpClass) -> None:
    with pytest.raises(FlintError, match=f"class {op_class.name}") as error:
        flint.cost_of("refused_kernel", op_class=op_class)(lambda call: 1)
    assert error.value.code == "FL709"
    assert declared.declaration_of("refused_kernel") is None


def fails(call: KernelCall) -> int:
    return call.operands[3].num_elements


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (fails, "declared_kernel raised IndexError: tuple index out of range"),
        (lambda call: "many", "declared_kernel returned 'many'"),
        (lambda call: None, "declared_kernel returned None"),
        (lambda call: {"bytes_accessed": 3}, "declared_kernel returned"),
        (lambda call: -1, "declared_kernel returned -1"),
        (lambda call: float("nan"), "declared_kernel returned nan"),
        (lambda call: float("inf"), "declared_kernel returned inf"),
    ],
)
def test_what_gives_no_numbers_is_the_users_error(
    cost: Callable[[KernelCall], Any], message: str
) -> None:
    with pytest.raises(FlintError, match="the cost function declared for") as error:
        declared.Declaration(OpClass.DECLARED, cost).work("declared_kernel", CALL)
    assert error.value.code == "FL709" and message in error.value.message


# custom calls of JAX ----------------------------------------------------------------------------


def ffi_program(name: str) -> Program:
    jax = pytest.importorskip("jax")

    def step(x: Any) -> Any:
        return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, steps=7)

    return flint.trace(step, "2", jax.ShapeDtypeStruct((64, 32), "float32")).program


def test_a_custom_call_of_jax_costs_what_is_declared_for_its_target() -> None:
    @flint.cost_of("my_ffi_target")
    def cost(call: KernelCall) -> flint.CostEstimate:
        return flint.CostEstimate(call.attributes["steps"] * call.operands[0].num_elements)

    (row,) = rows(ffi_program("my_ffi_target"), "my_ffi_target")
    assert (row.op, row.flops, row.flags) == (OpClass.DECLARED, 7 * 64 * 32, Flag(0))
    (other,) = rows(ffi_program("other_target"), "other_target")
    assert other.flags & Flag.UNPRICED


# operators of PyTorch ---------------------------------------------------------------------------


def summary(program: Program) -> list[tuple[str, OpClass, int, int, int]]:
    """Of the rows that only a declaration can price: those of the operators, and the cube's."""
    found = [r for r in map(program.row, range(len(program))) if "declared" in r.opcode]
    return [
        (r.opcode.split(".")[1].split("::")[-1], r.op, r.flops, r.operand_bytes, r.result_bytes)
        for r in found
    ]


MIX = ("mix", OpClass.DECLARED, 2 * 64 * 32 * 48 * 4, 4 * (64 * 32 + 32 * 48), 4 * 64 * 48)
CUBE = ("cube", OpClass.ARITHMETIC, 2 * 64 * 48, 4 * 64 * 48, 4 * 64 * 48)
SCAN = ("scan", OpClass.DECLARED, 7 * 64 * 48, 2 * 4 * 64 * 48, 4 * 64 * 48)


def test_both_routes_of_pytorch_count_what_is_declared() -> None:
    torch = pytest.importorskip("torch")
    from tests.declared_operators import Model, train

    recorded = flint.trace_distributed(train, "2").program
    assert summary(recorded) == [MIX, CUBE, SCAN]
    with torch.device("meta"):
        model, x = Model().eval(), torch.empty(64, 32)
    exported = flint.trace(model, "2", x).program
    assert summary(exported) == [MIX, SCAN]  # the cube is computed by what is registered for it
    assert int(exported.flops.sum()) == MIX[2] + CUBE[2] + SCAN[2]


def test_lists_and_defaults_are_attributes_on_both_routes() -> None:
    torch = pytest.importorskip("torch")
    from tests.declared_operators import Windowed, train

    recorded = flint.trace_distributed(train, "2", "run_windowed").program
    with torch.device("meta"):
        exported = flint.trace(Windowed().eval(), "2", torch.empty(64, 32)).program
    flops = [[r.flops for r in rows(p, "windowed")] for p in (recorded, exported)]
    assert flops == [[5 * 64 * 48], [5 * 64 * 32]]


def test_a_formula_that_raises_is_the_users_error_on_both_routes() -> None:
    torch = pytest.importorskip("torch")
    from tests.declared_operators import Broken, train

    def traced() -> None:
        with torch.device("meta"):
            flint.trace(Broken().eval(), "2", torch.empty(64, 32))

    for route in (lambda: flint.trace_distributed(train, "2", "broken"), traced):
        with pytest.raises(FlintError, match=r"declared::broken raised ZeroDivisionError") as error:
            route()
        assert error.value.code == "FL709"


def test_an_operator_without_a_declaration_has_no_price() -> None:
    pytest.importorskip("torch")
    from tests.declared_operators import train

    traced = flint.trace_distributed(train, "2", "unknown")
    (row,) = [r for r in rows(traced.program, "declared.") if r.flags & Flag.UNPRICED]
    assert row.opcode == "declared.unknown"
    with pytest.raises(FlintError, match=r"declared\.unknown") as error:
        traced.estimate("h100")
    assert error.value.code == "FL704"


def test_stages_are_balanced_by_what_is_declared() -> None:
    torch = pytest.importorskip("torch")
    from flint.frontends.torch_graph.stages.cut_modules import node_flops
    from tests.declared_operators import Model

    with torch.device("meta"):
        exported = torch.export.export(Model().eval(), (torch.empty(64, 32),))
    found = {str(n.target): f for n, f in node_flops(exported.graph_module).items() if f}
    assert found == {
        "declared.mix.default": MIX[2],
        "declared.cube.default": CUBE[2],
        "declared.scan.default": SCAN[2],
    }


def test_the_table_of_operators_needs_no_jax() -> None:
    """Recorded programs ask it what operators cost, where only PyTorch is installed."""
    pytest.importorskip("torch")
    code = """
import sys
class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoJax())
from flint.frontends.torch_ops.registry import known_ops
from flint.frontends.torch_ops.table import load_table
load_table()
print("aten::add.Tensor" in known_ops())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_stages_of_jax_are_balanced_by_what_is_declared() -> None:
    jax = pytest.importorskip("jax")
    pl = pytest.importorskip("jax.experimental.pallas")
    from flint.frontends.jax_stages.cut.jaxprs import Flops

    flint.cost_of("balanced_ffi")(lambda call: call.attributes["steps"] * X.num_elements)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)

    def step(x: Any) -> Any:
        x = jax.ffi.ffi_call("balanced_ffi", shape)(x, steps=7)
        x = jax.ffi.ffi_call("not_declared", shape)(x)
        estimate = pl.CostEstimate(flops=11, transcendentals=0, bytes_accessed=5)
        x = pl.pallas_call(lambda a, o: None, out_shape=shape, cost_estimate=estimate)(x)
        return x @ x.T

    equations = jax.make_jaxpr(step)(shape).jaxpr.eqns
    found = {e.primitive.name: Flops().of_one(e) for e in reversed(equations)}
    assert found["dot_general"] == 2 * 64 * 32 * 64
    assert found["ffi_call"] == 7 * X.num_elements
    assert found["pallas_call"] == 11
    assert Flops().of(equations) == sum(found.values())
