"""Which dimensions go together, by what a program does with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flint.errors import FlintError
from flint.steps.step import Step
from flint.tools.explore.propose.blank import blank_of
from flint.tools.explore.propose.constrained import constrained
from flint.tools.explore.propose.origin import origin_of
from flint.tools.explore.propose.plan import AtRest, ShardingPlan, of_argument
from flint.tools.explore.propose.words import kind
from tests.tools.explore.propose import models


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "float32")


@pytest.fixture(scope="module")
def blank():
    return origin_of(Step(models.step, models.args())).blank


def colours(blank, name):
    return blank.reading.colours_of(blank.reading.arguments[blank.names.index(name)])


def test_columns_and_rows_of_a_pair_are_found_by_the_products(blank):
    up, down = colours(blank, "layers[0][0]"), colours(blank, "layers[0][1]")
    assert up[1] == down[0], "the inner width is what the second product adds up"
    assert up[0] == down[1] == colours(blank, "x")[1], "the width is the residual's"
    assert up[0] != up[1]


def test_the_state_of_the_optimizer_has_the_colours_of_its_weight(blank):
    assert colours(blank, "moments[1][0]") == colours(blank, "layers[1][0]")
    assert {blank.names[n] for n in blank.states} == {
        n for n in blank.names if n.startswith("moments")
    }


def test_layers_that_differ_in_their_number_are_one_choice(blank):
    assert colours(blank, "layers[0][0]") == colours(blank, "layers[1][0]")
    assert len(blank.candidates) == 2


def test_the_batch_is_what_weights_have_not(blank):
    assert blank.name_of(blank.batch) == "x dimension 0"


def test_a_scan_stacks_weights_whose_layers_no_axis_splits():
    weights = {"up": shape(4, 64, 256), "down": shape(4, 256, 64)}
    blank = origin_of(Step(models.scanned, (weights, shape(32, 64)))).blank
    up, down = colours(blank, "weights['up']"), colours(blank, "weights['down']")
    assert up[2] == down[1]
    assert up[0] not in blank.multiplied
    assert [p.times for p in blank.reading.products] == [4, 4]


@pytest.mark.parametrize(
    ("made", "joined"),
    [
        (lambda x: x.reshape(8, 4, 6) * 1.0, [(0, 0), (1, 1)]),
        (lambda x: x.reshape(8, 2, 12) * 1.0, [(0, 0), (1, 1)]),
        (lambda x: x.T, [(0, 1), (1, 0)]),
        (lambda x: jnp.sum(x, 1), [(0, 0)]),
        (lambda x: x[:, :3], [(0, 0)]),
        (lambda x: jnp.concatenate([x, x], 1), [(0, 0)]),
        (lambda x: jnp.cumsum(x, 0), [(0, 0), (1, 1)]),
    ],
)
def test_dimensions_follow_what_moves_them(made, joined):
    found = blank_of(jax.make_jaxpr(made)(shape(8, 24)), ("x",)).reading
    before, after = found.colours_of(found.arguments[0]), found.colours_of(found.results[0])
    pairs = [(a, b) for a, c in enumerate(before) for b, d in enumerate(after) if c == d]
    assert pairs == joined


def test_words_say_what_products_do_with_a_colour():
    def look(table, experts, x, tokens):
        x = x + table[tokens]
        return jnp.einsum("ebd,edf->ebf", jnp.broadcast_to(x, (4, *x.shape)) * 1.0, experts)

    args = (shape(100, 16), shape(4, 16, 32), shape(8, 16), jax.ShapeDtypeStruct((8,), "int32"))
    blank = origin_of(Step(look, args)).blank
    said = {kind(blank, colours(blank, "table")[0]), kind(blank, colours(blank, "experts")[0])}
    assert said == {"vocabulary", "expert"}
    assert kind(blank, colours(blank, "experts")[2]) == "tensor"


def test_what_rests_in_parts_is_split_once_more(blank):
    inner = colours(blank, "layers[0][0]")[1]
    plan = ShardingPlan(
        (("data", 2), ("model", 4)), ((blank.batch,), (inner,)), AtRest.ALL, ("data",)
    )
    number = blank.names.index("layers[0][0]")
    assert of_argument(plan, blank, number) == (("data",), ("model",))
    assert of_argument(ShardingPlan(plan.axes, plan.splits), blank, number) == ((), ("model",))


def test_constraints_leave_values_as_they_are():
    at = "models.py"
    rng = np.random.default_rng(0)
    weights = {"up": rng.normal(size=(3, 8, 16)), "down": rng.normal(size=(3, 16, 8))}
    weights, x = jax.tree.map(np.float32, weights), np.float32(rng.normal(size=(4, 8)))
    shapes = (jax.tree.map(lambda w: shape(*w.shape), weights), shape(4, 8))
    blank = origin_of(Step(models.scanned, shapes)).blank
    lines = {p.at for p in blank.reading.products} | {c.at for c in blank.reading.carried}
    assert all(line.startswith(at) for line in lines)
    line = blank.reading.products[0].at
    keys = {
        f"{line} 4x16": P("data"),
        f"{line} reads 8x16": P(),
        f"{blank.reading.carried[0].at} carries 4x8": P("data"),
    }
    function = constrained(models.scanned, keys)
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        found = jax.jit(function)(weights, x)
        assert str(jax.make_jaxpr(function)(weights, x)).count("sharding_constraint") >= 3
    np.testing.assert_allclose(found, models.scanned(weights, x), rtol=1e-5)


def test_a_constraint_that_nothing_has_is_told():
    function = constrained(models.scanned, {"models.py:1 4x16": P()})
    with pytest.raises(FlintError, match="models.py:1 4x16") as told:
        jax.make_jaxpr(function)({"up": shape(3, 8, 16), "down": shape(3, 16, 8)}, shape(4, 8))
    assert told.value.code == "FL937"
