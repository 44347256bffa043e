"""Sizes: what symbols become, what resizing refuses, and that other sizes are consistent and go back."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import flint
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMNS, TABLES, Kind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.share.growing.grow import require_whole
from flint.tools.share.redact import redacted
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.sizes.symbols import Symbols, joined
from tests.auto_mesh import auto_mesh

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ("bert-small", "resnet-18", "vit")


@cache
def captured() -> Workload:
    """A small step with layers in a loop, sharded over two axes."""
    mesh = auto_mesh((4, 2), ("data", "model"))

    def shaped(shape, *spec, dtype=jnp.bfloat16):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def layer(x, weights):
        up, down, scale = weights
        x = x * scale / jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
        hidden = jax.nn.softmax(x @ up, axis=-1)
        return x + hidden @ down, None

    def loss(weights, tokens, table):
        x, _ = jax.lax.scan(layer, table[tokens], weights)
        return jnp.sum(jnp.concatenate([x, -x], axis=1).astype(jnp.float32))

    def step(weights, tokens, table):
        value, gradients = jax.value_and_grad(loss)(weights, tokens, table)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), weights, gradients)

    weights = (
        shaped((6, 64, 128), None, "data", "model"),
        shaped((6, 128, 64), None, "model", "data"),
        shaped((6, 64), None, None),
    )
    tokens = shaped((8, 32), "data", dtype=jnp.int32)
    table = shaped((512, 64), "model")
    return flint.trace(flint.Step(step, (weights, tokens, table)), mesh="data=4,model=2").workload


def assert_equal(one: Workload, other: Workload) -> None:
    """Bit by bit: columns, tables, mesh, classes and metadata."""
    assert one.to_bytes() == other.to_bytes()
    for a, b in zip(one.programs, other.programs, strict=True):
        for name in COLUMNS:
            assert getattr(a, name).dtype == getattr(b, name).dtype
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert all(getattr(a, t) == getattr(b, t) for t in TABLES)


@pytest.fixture(scope="module", params=[*RECORDED, "captured"])
def workload(request: pytest.FixtureRequest) -> Workload:
    """Recorded steps of PyTorch, and a captured one with a loop over layers and two axes."""
    if request.param == "captured":
        return captured()
    return Workload.load(ROOT / "benchmarks" / "compare_models" / f"{request.param}.flint")


# workloads ----------------------------------------------------------------------------------------


def test_without_other_values_nothing_changes(workload: Workload) -> None:
    assert_equal(Sizes.of(workload).resized({}), workload)


def test_other_values_keep_the_rules_and_go_back(workload: Workload) -> None:
    sizes = Sizes.of(workload)
    values = {v.number: 2 * v.value + 3 + v.number for v in sizes.variables}
    found = sizes.resized(values)
    require_whole(sizes, found)
    again = Sizes.of(found)
    assert again.unexplained == sizes.unexplained
    assert len(again.variables) == len(sizes.variables)
    assert {again.variables[n].value for n in values} == set(values.values())
    back = {v.number: v.value for v in sizes.variables}
    assert_equal(again.resized(back), workload)


@pytest.mark.parametrize(
    ("column", "op"),
    [
        ("flops", OpClass.MATMUL),
        ("flops", OpClass.REDUCE),
        ("flops", OpClass.EXPONENTIAL),
        ("dims", OpClass.MATMUL),
        ("result_bytes", OpClass.DYNAMIC_SLICE),
        ("operand_bytes", OpClass.MULTIPLY),
        ("comm_bytes", OpClass.MOVE),
        ("shape", OpClass.MATMUL),
        ("shape", OpClass.TRANSPOSE),
        ("shape", OpClass.MULTIPLY),
    ],
)
def test_a_row_that_does_not_fit_what_it_reads_is_refused(column: str, op: OpClass) -> None:
    """Every row of a captured program follows from what it reads, and one with another number does not."""
    workload, sizes = captured(), Sizes.of(captured())
    program = workload.programs[0]
    assert not sizes.unexplained
    row = int(np.flatnonzero((program.op == op) & (program.kind >= Kind.COMPUTE))[0])
    values = getattr(program, column).copy()
    values[row] = (values[row] + 1) if column != "shape" else len(program.shapes)
    shapes = (*program.shapes, (7, 11))
    wrong = Workload.single(replace(program, **{column: values}, shapes=shapes))
    assert row in Sizes.of(wrong).unexplained
    with pytest.raises(FlintError, match="do not fit what they read") as error:
        require_whole(sizes, wrong)
    assert error.value.code == "FL922"


def test_names_say_nothing_of_sizes(workload: Workload) -> None:
    assert Sizes.of(redacted(workload)).variables == Sizes.of(workload).variables


def test_variables_of_a_step_with_layers() -> None:
    sizes = Sizes.of(captured())
    found = {v.value: v for v in sizes.variables}
    assert found[6].layers
    # Layers, width (64 over data=4), inner size (128 over model=2), vocabulary, batch, sequence.
    assert sorted(found) == [2, 6, 16, 32, 64, 256]
    assert sum(v.layers for v in sizes.variables) == 1


def test_dimensions_are_expressions() -> None:
    sizes = Sizes.of(captured())
    program = sizes.workload.programs[0]
    parameter = int(np.flatnonzero(program.kind == Kind.PARAMETER)[0])
    expressions = sizes.dimension(parameter)
    values = sizes.values()
    assert [e.value(values) for e in expressions] == [6, 16, 64]
    gathers = np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist()
    factors = {f for row in gathers for e in sizes.dimension(row) for f in e.factors}
    assert AxisRef("data") in factors


def test_flops_follow() -> None:
    """Twice the sequence is twice the products of matrices and what is computed of tokens."""
    sizes = Sizes.of(captured())
    sequence = next(v.number for v in sizes.variables if v.value == 32)
    before, after = (w.programs[0] for w in (sizes.workload, sizes.resized({sequence: 64})))
    products = (before.dims > 0).all(axis=1) & (before.dims[:, 1] * before.dims[:, 3] > 1)
    several = before.dims[products].prod(axis=1)
    assert (after.dims[products].prod(axis=1) >= several).all()
    assert after.flops.sum() > 1.5 * before.flops.sum()


def test_another_mesh_changes_what_is_gathered() -> None:
    sizes = Sizes.of(captured())
    found = sizes.resized({}, mesh=Mesh(("data", "model"), (8, 2)))
    require_whole(sizes, found)
    kept = sizes.workload.programs[0].kind == Kind.PARAMETER
    a, b = (w.programs[0].result_bytes[kept].tolist() for w in (sizes.workload, found))
    assert a[:2] == b[:2]  # sharded over both axes: what one device has stays
    assert (2 * a[2], 2 * a[4]) == (b[2], b[4])  # as wide as those are over all devices


@pytest.mark.parametrize("values", [{0: 0}, {0: -3}, {99: 4}])
def test_values_that_do_not_fit_are_refused(values: dict[int, int]) -> None:
    with pytest.raises(FlintError, match="FL905"):
        Sizes.of(captured()).resized(values)


@pytest.mark.parametrize(
    "mesh", [Mesh(("a", "b"), (4, 2)), Mesh(("data", "model"), (4, 1)), Mesh(("data",), (8,))]
)
def test_meshes_that_do_not_fit_are_refused(mesh: Mesh) -> None:
    with pytest.raises(FlintError, match="FL905"):
        Sizes.of(captured()).resized({}, mesh=mesh)


def test_the_mesh_of_listed_ranks_stays() -> None:
    listed = replace(captured(), classes=(RankClass("all", 0, ranks=tuple(range(8))),))
    with pytest.raises(FlintError, match="rank classes"):
        Sizes.of(listed).resized({}, mesh=Mesh(("data", "model"), (8, 2)))


def test_sizes_beyond_what_columns_hold_are_refused() -> None:
    with pytest.raises(FlintError, match="FL905"):
        Sizes.of(captured()).resized({0: 1 << 40, 1: 1 << 40, 2: 1 << 40})


# symbols ------------------------------------------------------------------------------------------


def value_of(symbols: Symbols, term: tuple[int, tuple[int, ...]]) -> str:
    numbers = {s: s for s in symbols.free_symbols(term)}
    terms = symbols.expression(term, numbers, {}).terms
    texts = [([f"v{f}" if isinstance(f, int) else str(f) for f in m], c) for m, c in terms]
    return " + ".join("*".join([str(c)] * (c != 1 or not m) + m) for m, c in texts) or "0"


def test_a_product_is_split_where_it_is_reshaped() -> None:
    symbols = Symbols()
    whole, heads, size = symbols.new(4096), symbols.new(32), symbols.new(128)
    assert symbols.reshape([whole], [heads, size])
    assert symbols.is_same(whole, joined([heads, size]))


def test_common_divisors_are_found() -> None:
    """[12, 10] as [8, 15]: 12 = 4 x 3, 8 = 4 x 2, 10 = 2 x 5, 15 = 3 x 5."""
    symbols = Symbols()
    a, b, c, d = (symbols.new(n) for n in (12, 10, 8, 15))
    assert symbols.reshape([a, b], [c, d])
    assert symbols.is_same(joined([a, b]), joined([c, d]))
    assert len(symbols.free_symbols(joined([a, b]))) == 4


def test_axes_are_carved_out() -> None:
    symbols = Symbols()
    data, model = symbols.axis(AxisRef("data"), 8), symbols.axis(AxisRef("model"), 4)
    one, other = symbols.new(512), symbols.new(1024)
    symbols.equate(joined([data, one]), joined([model, other]))
    assert symbols.is_same(joined([data, one]), joined([model, other]))
    assert symbols.free_symbols(one) == symbols.free_symbols(other) != set()


def test_sums_of_equal_parts_are_multiples() -> None:
    symbols = Symbols()
    whole, part, other = symbols.new(128), symbols.new(64), symbols.new(64)
    symbols.equate(whole, symbols.sum([part, other]))
    symbols.equate(part, other)
    symbols.equate(whole, (2, part[1]))
    assert value_of(symbols, whole) == f"2*v{symbols.expand(part)[1][0]}"


def test_what_contradicts_is_constant() -> None:
    symbols = Symbols()
    one, other = symbols.new(6), symbols.new(7)
    symbols.equate(one, other)
    assert symbols.expand(one) == (6, ())
    assert symbols.expand(other) == (7, ())


@given(st.lists(st.integers(2, 12), min_size=1, max_size=5), st.randoms())
def test_terms_keep_their_value_whatever_is_equated(sizes: list[int], random: object) -> None:
    """Products of the same numbers in another grouping are made of the same symbols."""
    symbols = Symbols()
    shuffled = list(sizes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    at = random.randint(0, len(sizes))  # type: ignore[attr-defined]
    sides = []
    for numbers in (sizes, shuffled):
        groups = [g for g in (numbers[:at], numbers[at:]) if g]
        sides.append([symbols.new(int(np.prod(g))) for g in groups])
    one, other = joined(sides[0]), joined(sides[1])
    symbols.equate(one, other)
    assert symbols.value(one) == symbols.value(other) == int(np.prod(sizes))
    assert symbols.is_same(one, other)
    for term in (*sides[0], *sides[1]):
        assert symbols.value(symbols.expand(term)) == symbols.value(term)


# expressions --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.lists(st.integers(0, 3), max_size=3)), max_size=4),
    st.lists(st.tuples(st.integers(-5, 5), st.lists(st.integers(0, 3), max_size=3)), max_size=4),
)
def test_expressions_are_as_their_values(one: list[object], other: list[object]) -> None:
    values = {0: 2, 1: 3, 2: 5, 3: 7}

    def made(terms: list[object]) -> Expression:
        return Expression.sum(
            Expression.product(map(Expression.factor, factors)).times(number)  # type: ignore[misc]
            for number, factors in terms
        )

    a, b = made(one), made(other)
    assert Expression.sum((a, b)).value(values) == a.value(values) + b.value(values)
    assert Expression.product((a, b)).value(values) == a.value(values) * b.value(values)
    assert Expression.sum((a, a.times(-1))) == Expression.constant(0)
