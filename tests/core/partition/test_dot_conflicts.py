"""Products in which one mesh axis splits different dimensions, by Shardy's rules."""

import pytest

import flint
from flint.ir.program import Collective, Kind
from flint.passes.partition.as_xla.product_plan import Product, settled
from flint.tracing import trace_file
from tests.auto_mesh import auto_mesh

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
MESH = {"data": 2, "model": 4}


def collectives(fn, operands, result):
    mesh = auto_mesh(tuple(MESH.values()), tuple(MESH))

    def on(spec):
        return jax.sharding.NamedSharding(mesh, spec)

    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=on(spec)) for shape, spec in operands
    ]
    program = flint.trace(
        fn, MESH, *arguments, out_shardings=on(result), partitioner="shardy"
    ).program
    rows = [program.row(int(i)) for i in (program.kind == Kind.COLLECTIVE).nonzero()[0]]
    return [(r.collective, str(r.group), r.comm_bytes) for r in rows]


def test_a_large_weight_is_gathered_for_few_tokens() -> None:
    # 8 tokens and a weight of 1024 x 512: XLA, too, gathers unless another axis has nothing to do
    operands = [((8, 1024), P("data")), ((1024, 512), P("data"))]
    assert collectives(jnp.dot, operands, P("data")) == [
        (Collective.ALL_GATHER, "data", 512 * 512 * 2)
    ]


def test_its_gradient_is_reduce_scattered() -> None:
    def product(x, dy):
        return jnp.einsum("bi,bj->ij", x, dy)

    operands = [((8, 1024), P("data")), ((8, 512), P("data"))]
    assert collectives(product, operands, P("data")) == [
        (Collective.REDUCE_SCATTER, "data", 1024 * 512 * 2)
    ]


def test_a_column_parallel_weight_keeps_its_columns() -> None:
    operands = [((8, 1024), P("data")), ((1024, 512), P("data", "model"))]
    assert collectives(jnp.dot, operands, P("data", "model")) == [
        (Collective.ALL_GATHER, "data", 512 * 128 * 2)
    ]


def test_inside_a_loop() -> None:
    def layers(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    operands = [((8, 256), P("data")), ((3, 256, 256), P(None, "data"))]
    assert collectives(layers, operands, P("data")) == [
        (Collective.ALL_GATHER, "data", 128 * 256 * 2)
    ]


@pytest.mark.parametrize("other", ['<["data"=2, "model"=4]>', "<[]>"])
def test_modules_of_several_meshes(other: str, tmp_path) -> None:
    """Flax's nnx writes an empty one beside that of the program."""
    file = tmp_path / "several.mlir"
    file.write_text(
        'module { sdy.mesh @mesh = <["data"=2, "model"=4]>\n'
        f"  sdy.mesh @other = {other}\n"
        "  func.func @main(%x: tensor<8x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, "
        '[{"data"}, {}]>}, %w: tensor<1024x512xbf16> {sdy.sharding = #sdy.sharding<@mesh, '
        '[{"data"}, {}]>}) -> (tensor<8x512xbf16> {sdy.sharding = #sdy.sharding<@mesh, '
        '[{"data"}, {}]>}) {\n    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] '
        ": (tensor<8x1024xbf16>, tensor<1024x512xbf16>) -> tensor<8x512xbf16>\n"
        "    return %0 : tensor<8x512xbf16>\n  }\n}"
    )
    program = trace_file(file, MESH, partitioner="shardy").program
    found = [program.row(int(i)) for i in (program.kind == Kind.COLLECTIVE).nonzero()[0]]
    sent = [(r.collective, r.comm_bytes) for r in found]
    assert sent == [(Collective.ALL_GATHER, 512 * 512 * 2)]


ROWS, SUMMED, COLUMNS = 0, 2, 1
PLACES = {
    # lhs, rhs and result by factor; afterwards, the result as it is made
    "summed by two axes of one size: one operand moves": (
        ({SUMMED: "x"}, {SUMMED: "y"}, {}),
        ({SUMMED: "y"}, {SUMMED: "y"}, {}),
    ),
    "a weight goes to an idle axis of the same size": (
        ({ROWS: "x"}, {SUMMED: "x"}, {ROWS: "x"}),
        ({ROWS: "x", SUMMED: "y"}, {SUMMED: "y"}, {ROWS: "x"}),
    ),
    "rows stay, parts are summed": (
        ({ROWS: "x", SUMMED: "y"}, {SUMMED: "y"}, {ROWS: "x"}),
        ({ROWS: "x", SUMMED: "y"}, {SUMMED: "y"}, {ROWS: "x"}),
    ),
    "the result is elsewhere: operands follow": (
        ({ROWS: "x"}, {COLUMNS: "x"}, {COLUMNS: "x"}),
        ({}, {COLUMNS: "x"}, {COLUMNS: "x"}),
    ),
    "summed over all, kept in part": (
        ({SUMMED: "xy"}, {SUMMED: "xy"}, {ROWS: "x"}),
        ({SUMMED: "xy"}, {SUMMED: "xy"}, {}),
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_two_axes(case: str) -> None:
    factors = ((ROWS, SUMMED), (SUMMED, COLUMNS), (ROWS, COLUMNS))

    def layouts(places):
        return tuple(
            tuple(tuple((name, 1, 4) for name in held.get(f, "")) for f in dims)
            for dims, held in zip(factors, places, strict=True)
        )

    before, after = PLACES[case]
    product = Product((64, 64, 64), factors, (32, 32, 32))
    found = settled(product, layouts(before), (("x", 1, 4), ("y", 1, 4)))
    assert found == layouts(after)
