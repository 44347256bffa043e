"""JAX scripts that hide their step: run without devices, and captured as they would run there."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

import jax

from flint import routes
from flint.errors import FlintError
from flint.frontends.jax_world.calls import Choice
from flint.steps.captured import Captured
from flint.tracing import Trace, trace_script
from tests.jax_scripts import captured, train_script
from tests.long import long_but

#: Products of a step: 3 forward, 3 for weights, 2 for activations (the first has no gradient).
PRODUCTS = 8 * 2 * 512 * 64 * 64


def finished(found: Captured) -> dict[str, Any]:
    """What the summary of a captured step says of each device."""
    (only,) = Trace(routes.finished(found, routes.Asked(found.mesh))).summary().to_json()["classes"]
    return dict(only)


def test_a_step_in_a_closure_is_captured_with_its_shardings_and_donation(tmp_path: Path) -> None:
    found = captured(tmp_path, train_script())
    said = finished(found)
    assert found.name == "train_step"
    assert found.mesh.sizes == (64, 8)
    assert found.mesh.names == ("data", "model")
    assert b"jax.buffer_donor" in found.module or b"tf.aliasing_output" in found.module
    # 512 devices share all products; weights are in columns: 3 x 64 x 8 floats of each device.
    assert said["matmul_flops"] == PRODUCTS // 512
    assert said["parameter_bytes"] == 3 * 64 * 8 * 4 + 2 * 8 * 64 * 4 + 4
    by = {(c["collective"], c["over"]): c for c in said["collectives"]}
    assert by["all_reduce", "data"]["count"] == 3  # a gradient for each layer
    assert by["all_reduce", "data"]["comm_bytes"] == 3 * 64 * 8 * 4
    assert by["all_reduce", "data,model"]["comm_bytes"] == 4  # the loss


def test_the_command_runs_it_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(train_script("if int(state['step']) % 4 == 0: print(float(loss))"))
    command = [sys.executable, "-m", "flint", "capture", str(file), "--mesh", "64x8", "--world"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["summary"]["name"] == "train_step"
    assert said["summary"]["classes"][0]["matmul_flops"] == PRODUCTS // 512
    assert "train.py:38: reads a number (float32), which depends on data: 1.0" in said["warnings"]


@pytest.mark.parametrize("condition", ["loss > 0.5", "bool((grad := loss) < 2)"])
def test_a_branch_on_data_is_refused_with_its_line(tmp_path: Path, condition: str) -> None:
    body = f"if {condition}: print('high')"
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, train_script(body))
    assert caught.value.code == "FL233"
    assert caught.value.place == "train.py:38"
    assert '--hint "train.py:38=true"' in str(caught.value.help)


@pytest.mark.parametrize(("answer", "calls"), [(True, 3), (False, 7)])
def test_a_hint_takes_the_side_that_it_says(tmp_path: Path, answer: bool, calls: int) -> None:
    body = """
    if loss > 0.5 and number == 2: break
    if number == 6: break
    """
    choice = Choice("train_step", calls, True)
    found = captured(tmp_path, train_script(body), hints={"train.py:39": answer}, choice=choice)
    assert found.name == "train_step"
    with pytest.raises(FlintError, match=f"call {calls + 1} of 'train_step' never came"):
        captured(
            tmp_path,
            train_script(body),
            hints={"train.py:39": answer},
            choice=Choice("train_step", calls + 1, True),
        )


def test_what_follows_from_the_program_is_known(tmp_path: Path) -> None:
    """A counter in the state is a number, also where it is a bound, an index or a key."""
    body = """
    assert int(state["step"]) == number + 1 == range(200)[state["step"]]
    assert f"{state['step']:03d}" == f"{number + 1:03d}"
    assert float(jnp.sqrt(state["step"] * 4.0)) == 2.0 * np.sqrt(np.float32(number + 1))
    assert [10, 20, 30][jnp.asarray(2)] == 30 and bool(jnp.isfinite(loss)) and not jnp.isnan(loss)
    if state["step"] == 5: break
    """
    script = train_script(body)
    assert captured(tmp_path, script, choice=Choice("train_step", 5, True)).name == "train_step"
    with pytest.raises(FlintError, match="call 6 of 'train_step' never came"):
        captured(tmp_path, script, choice=Choice("train_step", 6, True))


def test_arrays_have_lengths_and_are_iterated_as_those_of_jax(tmp_path: Path) -> None:
    body = """
    rows = jax.device_put(np.arange(24.0).reshape(8, 3), NamedSharding(mesh, P("data")))
    assert len(rows) == 8 and len(rows.T) == 3, (len(rows), len(rows.T))
    assert [row.shape for row in rows] == [(3,)] * 8
    assert [len(column) for column in rows.T] == [8] * 3
    assert len(jnp.zeros((0, 4))) == 0 and list(jnp.zeros((0, 4))) == []
    for ask in (len, iter):
        try:
            ask(loss)
        except TypeError as error:
            assert "unsized" in str(error) or "0-d" in str(error), error
        else:
            raise AssertionError("a scalar has no length")
    """
    assert captured(tmp_path, train_script(body), "1x8").name == "train_step"


def test_a_donated_array_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        captured(tmp_path, train_script("before['layers'][0] + 1"), choice=Choice("evaluate"))


def test_several_functions_are_listed_and_one_is_chosen(tmp_path: Path) -> None:
    script = train_script("evaluate(state['layers'], x, x)")
    best = captured(tmp_path, script)
    (said,) = best.warnings
    assert said == (
        "captured call 2 of train_step (train.py:23): 10 calls of 33.6 MFLOP in products; also "
        "jitted: evaluate (train.py:29): 9 calls of 12.6 MFLOP in products; evaluate, called "
        "equally often, may be part of the step; --step NAME captures another"
    )
    other = captured(tmp_path, script, choice=Choice("evaluate", 1, True))
    assert other.name == "evaluate"
    assert finished(other)["matmul_flops"] == 3 * 2 * 512 * 64 * 64 // 512
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, train_script("if number == 3: break"), choice=Choice("train_stp"))
    assert caught.value.code == "FL231"
    assert "did you mean 'train_step'" in caught.value.message
    assert "train_step (train.py:23): 4 calls" in str(caught.value.help)


def test_a_function_that_is_called_once_is_captured_at_that_call(tmp_path: Path) -> None:
    body = """
    if number == 4:
        evaluate(state['layers'], x, x)
        break
    """
    found = captured(tmp_path, train_script(body), choice=Choice("evaluate"))
    assert found.name == "evaluate"
    assert found.warnings[0].startswith("captured call 1 of evaluate")


LOOP = """
import jax, jax.numpy as jnp

@jax.jit
def decode(x):
    def more(state):
        return jnp.logical_and(state[0] < 100, state[1].sum() > 0)

    return jax.lax.while_loop(more, lambda s: (s[0] + 1, s[1] @ s[1]), (0, x))

for _ in range(2):
    decode(jnp.ones((8, 8)))
"""


def test_loops_without_a_bound_take_the_trip_count_that_is_given(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(LOOP)
    with pytest.raises(FlintError) as caught:
        trace_script(script, "1")
    assert caught.value.code == "FL403"
    (name,) = re.findall(r"--trip-count (\S+)=", str(caught.value.help))
    assert str(caught.value.help).endswith("; its counter ends it after 100")
    (only,) = trace_script(script, "1", trip_counts={name: 7}).summary().to_json()["classes"]
    assert only["matmul_flops"] == 7 * 2 * 8**3
    with pytest.raises(FlintError, match="no loop"):
        trace_script(script, "1", trip_counts={name: 7, "other": 2})


@pytest.mark.long
def test_four_thousand_devices_and_a_chip_that_answers_for_itself(tmp_path: Path) -> None:
    script = """
    import jax
    d = jax.devices()[5]
    assert jax.default_backend() == d.platform == "tpu" and d.device_kind == "TPU v5"
    assert len(jax.devices()) == jax.device_count() == jax.local_device_count() == 4096
    assert (jax.process_index(), jax.process_count()) == (0, 1)
    assert isinstance(d, jax.Device) and len(d.coords) == 3
    assert d.memory_stats()["bytes_limit"] == 102005473280
    jax.distributed.initialize()
    """
    found = captured(tmp_path, textwrap.dedent(script) + train_script(), "512x8", chip="v5p")
    assert finished(found)["matmul_flops"] == PRODUCTS // 4096
    assert found.source == "train.py"


@pytest.mark.long
def test_jax_is_afterwards_as_it_was(tmp_path: Path) -> None:
    before = jax.devices(), jax.Device, jax.jit(lambda x: x + 1)(2).item()
    captured(tmp_path, train_script())
    assert (jax.devices(), jax.Device, jax.jit(lambda x: x + 1)(2).item()) == before
    assert jax.default_backend() == "cpu"
    assert isinstance(jax.numpy.ones(3), jax.Array)
    assert jax.numpy.arange(4).sum().item() == 6


PMAP = """
import functools, jax, jax.numpy as jnp, numpy as np

def main():
    n = jax.local_device_count()

    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=0)
    def update(params, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(params["w"])
        grad = jax.lax.pmean(grad, axis_name="batch")
        return {"w": params["w"] - grad, "step": params["step"] + 1}, loss

    params = {"w": jnp.zeros((32, 16)), "step": jnp.zeros((), jnp.int32)}
    params = jax.tree.map(lambda a: jnp.stack([a] * n), params)
    for number in range(3):
        params, loss = update(params, np.ones((n, 8, 32), np.float32))
        assert int(params["step"][0]) == number + 1

main()
"""


def test_pmap_is_a_mesh_of_one_axis(tmp_path: Path) -> None:
    found = captured(tmp_path, PMAP, "16")
    said = finished(found)
    assert (found.name, found.mesh.names, found.mesh.sizes) == ("update", ("batch",), (16,))
    assert said["matmul_flops"] == 2 * 2 * 8 * 32 * 16  # on each device: forward, and weights
    (reduced,) = said["collectives"]
    assert (reduced["collective"], reduced["over"]) == ("all_reduce", "batch")
    assert (reduced["count"], reduced["comm_bytes"]) == (1, 32 * 16 * 4)


EXPLICIT = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Explicit,))
jax.set_mesh(mesh)
w = jax.device_put(jnp.ones((64, 32)), P(None, "x"))
x = jax.reshard(jnp.ones((16, 64)), P())

@jax.jit
def forward(w, x):
    return x @ w

for _ in range(2):
    y = forward(w, x)
assert jax.typeof(y).sharding.spec == P(None, "x") and y.sharding.spec == P(None, "x")
local = jax.shard_map(lambda a: jax.lax.psum(a, "x"), in_specs=P(None, "x"), out_specs=P())(y)
assert local.shape == (16, 2) and y.addressable_shards[3].data.shape == (16, 2)
"""


@pytest.mark.long
def test_a_step_that_is_compiled_ahead_is_captured_when_it_is_called(tmp_path: Path) -> None:
    body = """
    if number == 0: compiled = train_step.lower(state, x, x).compile()
    assert compiled.memory_analysis() is None and "stablehlo" in compiled.as_text()
    assert compiled.cost_analysis()["flops"] * jax.device_count() == 8 * 2 * 512 * 64 * 64
    state, loss = compiled(state, x, x)
    """
    found = captured(tmp_path, train_script(body))
    assert found.name == "train_step"
    assert finished(found)["matmul_flops"] == PRODUCTS // 512


@pytest.mark.long
def test_set_mesh_explicit_axes_and_eager_shard_map(tmp_path: Path) -> None:
    found = captured(tmp_path, EXPLICIT, "16")
    said = finished(found)
    assert (found.name, found.mesh.names) == ("forward", ("x",))
    assert said["matmul_flops"] == 2 * 16 * 64 * 32 // 16
    assert not said["collectives"]


@pytest.mark.long
def test_arguments_on_different_devices_are_refused_as_jax_does(tmp_path: Path) -> None:
    body = "evaluate(state['layers'], jax.device_put(x, jax.devices()[3]), x)"
    with pytest.raises(ValueError, match="incompatible devices for jitted computation") as caught:
        captured(tmp_path, train_script(body))
    assert "evaluate: float32[512,64] on cuda:3 and float32[512,64] on 512" in str(caught.value)


@pytest.mark.long
def test_a_loop_that_waits_for_another_value_ends(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, train_script("while float(loss) > 0.5: pass"))
    assert caught.value.code == "FL239"
    assert caught.value.place == "train.py:38"


@pytest.mark.long
def test_a_program_that_never_ends_is_ended_in_its_loop(tmp_path: Path) -> None:
    script = """
    import jax
    @jax.jit
    def small(x): return x + 1
    x = 0
    while True:
        x = small(x)
    """
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, script, "2", choice=Choice("big", 1, True))
    assert (caught.value.code, caught.value.place) == ("FL239", "train.py:7")


@pytest.mark.long
def test_a_mesh_of_other_devices_or_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, train_script(), "rows=64,model=8")
    assert caught.value.code == "FL232"
    half = train_script().replace("jax.device_count() // ways, ways)", "4, 8), jax.devices()[:32]")
    with pytest.raises(FlintError, match="of 32 devices, but --mesh data=64,model=8 has 512"):
        captured(tmp_path, half)


@pytest.mark.long
def test_a_step_on_one_device_says_so(tmp_path: Path) -> None:
    script = """
    import jax, jax.numpy as jnp
    @jax.jit
    def f(x): return x @ x
    for _ in range(2): f(jnp.ones((8, 8)))
    """
    found = captured(tmp_path, script, "4")
    (said,) = found.warnings
    assert said.startswith("f runs on one of the 4 devices")


@pytest.mark.long
def test_eager_operations_alone_are_no_step(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        captured(tmp_path, "import jax.numpy as jnp\nx = jnp.ones((8, 8)) @ jnp.ones((8, 8))", "4")
    assert caught.value.code == "FL231"


#: Prepares without products, as often as a step is called, and then fails before there is one.
PREPARES = """
import jax, jax.numpy as jnp
init = jax.jit(lambda key: jax.random.normal(key, (64, 64)))
step = jax.jit(lambda w, x: x @ w)
w, b = init(jax.random.key(0)), init(jax.random.key(1))
{failing}
"""


@pytest.mark.parametrize(
    ("failing", "error"),
    long_but(
        [("step(w, jnp.ones((8, 63)))", TypeError)],
        [
            ("step(w, jnp.ones((8, 63)))", TypeError),
            ("open('no such file')", FileNotFoundError),
            ("raise SystemExit(3)", SystemExit),
        ],
    ),
)
def test_an_error_before_the_step_is_the_programs(
    tmp_path: Path, failing: str, error: type[BaseException]
) -> None:
    script = PREPARES.format(failing=failing)
    with pytest.raises(error):
        captured(tmp_path, script, "4")


#: An array of `--mesh` devices whose axes change their types for a function and back.
AXIS_TYPES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, set_mesh
from jax.sharding import auto_axes, explicit_axes
types = {types}
mesh = jax.make_mesh((jax.device_count() // 2, 2), ("x", "y"), axis_types=types)
step = jax.jit(lambda a, n: (a @ jnp.ones((64, 64))) * n.sum())
with set_mesh(mesh):
    a = jax.device_put(np.ones((16, 64), np.float32), NamedSharding(mesh, P("x")))
    n = {changed}(a)
    assert n.sharding.mesh.axis_types == types, n.sharding
    for _ in range(3):
        step(a, n)
"""


@pytest.mark.parametrize(
    ("types", "changed"),
    long_but(
        [("(AxisType.Auto,) * 2", "explicit_axes(lambda i: i.sum(-1), in_sharding=P('x'))")],
        [
            (
                "(AxisType.Explicit,) * 2",
                "auto_axes(lambda i: (i + 1).sum(-1), out_sharding=P('x'))",
            ),
            ("(AxisType.Explicit,) * 2", "auto_axes(lambda i: jnp.zeros(16), out_sharding=P())"),
            (
                "(AxisType.Explicit, AxisType.Auto)",
                "auto_axes(lambda i: (i * 2).sum(1), axes='x', out_sharding=P())",
            ),
            ("(AxisType.Auto,) * 2", "explicit_axes(lambda i: i.sum(-1), in_sharding=P('x'))"),
        ],
    ),
)
def test_axes_change_their_types_outside_of_jit(tmp_path: Path, types: str, changed: str) -> None:
    found = captured(tmp_path, AXIS_TYPES.format(types=types, changed=changed), "4")
    assert found.mesh.sizes == (2, 2)


@pytest.mark.long
def test_an_error_after_the_step_is_a_warning(tmp_path: Path) -> None:
    found = captured(tmp_path, train_script("if number == 4: raise OSError('no disk')"))
    assert any("raised OSError: no disk (train.py:38" in w for w in found.warnings)
    assert math.prod(found.mesh.sizes) == 512
