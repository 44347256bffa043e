"""Phases of rows: those of manual bodies, and matrix products of whole training steps by phase."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Phase, Program, RegionKind
from flint.passes.rewrites.phases import with_phases
from flint.tracing import trace_step
from tests.auto_mesh import auto_mesh
from tests.long import long_but
from tests.program_rows import ProgramBuilder

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
#: Example, mesh and options; whether its backward pass recomputes.
_STEPS = (
    ("llama_jax.py", "4x2", "num_layers=2 seq=128", True),
    ("llama_jax.py", "4x2", "num_layers=2 seq=128 layers=unrolled remat=none", False),
    ("mixtral_jax.py", "4x2", "num_layers=2 seq=128 remat=none", False),
    ("mixtral_jax.py", "4x2", "num_layers=2 seq=128 dispatch=einsum", True),
    ("ring_attention_jax.py", "2x4", "seq=4096", True),
    ("spmd_pipeline_jax.py", "4x2", "num_layers=8 seq=512", True),
    ("gpt3_jax.py", "pipe=2,data=1,model=2", "num_layers=4 model=6.7b remat=none clip=1.0", False),
    ("resnet50_jax.py", "2x2", "batch=8 image=64", False),
    ("torch_llama.py", "4x2", "num_layers=2 seq=128", False),
)
STEPS = long_but((_STEPS[3], _STEPS[5]), _STEPS)


def programs(file: str, mesh: str, options: str) -> tuple[Program, ...]:
    if file.startswith("torch"):
        pytest.importorskip("torch")
    target = Target.parse(str(EXAMPLES / file))
    settings = dict(option.split("=") for option in options.split())
    with importable(EXAMPLES):
        loaded = load_step(target, mesh, settings=settings)
        trace = trace_step(loaded.step, loaded.mesh, name=loaded.name)
        return trace.workload.programs


def products(program: Program, phase: Phase) -> Counter[tuple[str, int]]:
    """Products of matrices in a phase: how often each runs, by its source line and its flops."""
    found: Counter[tuple[str, int]] = Counter()
    chosen = (program.phase == phase) & (program.dims > 0).all(axis=1) & (program.dims[:, 2] > 1)
    for number in chosen.nonzero()[0].tolist():
        row = program.row(number)
        found[row.location, row.flops] += int(program.trips[number])
    return found


def flops(found: Counter[tuple[str, int]]) -> int:
    return sum(each * times for (_, each), times in found.items())


@pytest.mark.parametrize(("file", "mesh", "options", "recomputes"), STEPS)
def test_a_step_has_two_products_backward_for_each_forward(
    file: str, mesh: str, options: str, recomputes: bool
) -> None:
    for program in programs(file, mesh, options):
        check(program, recomputes)


def check(program: Program, recomputes: bool) -> None:
    forward, backward = (products(program, p) for p in (Phase.FORWARD, Phase.BACKWARD))
    again, update = (products(program, p) for p in (Phase.REMAT, Phase.OPTIMIZER))
    assert not update and not products(program, Phase.UNKNOWN)
    # nobody needs gradients of images, of masks and of rotary embeddings
    assert 1.94 * flops(forward) <= flops(backward) <= 2.002 * flops(forward)
    assert bool(again) is recomputes
    assert again <= forward


MESH = auto_mesh((4, 2), ("data", "model"))


def by_hand(recomputes: bool) -> flint.Trace:
    """A training step whose model is a `shard_map`, in a scope and nothing around it."""

    def body(x: Any, w: Any) -> Any:
        return jax.lax.psum(jnp.tanh(x @ w), "model")

    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("block"):
            specs = (P("data", "model"), P("model"))
            block = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P("data"))
            return jnp.sum((jax.checkpoint(block) if recomputes else block)(x, w) ** 2)

    def step(w: Any, x: Any) -> Any:
        with jax.named_scope("update"):
            return w - 0.1 * jax.grad(loss)(w, x)

    matrices = (jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2
    return flint.trace(step, MESH, *matrices)


@pytest.mark.parametrize("again", [[], [Phase.REMAT]])
def test_bodies_of_shard_map_have_scope_and_phase_of_where_they_are(again: list[Phase]) -> None:
    program = by_hand(recomputes=bool(again)).program
    found = [program.row(r) for r in range(len(program)) if program.kind[r] >= Kind.COMPUTE]
    products = [r for r in found if r.opcode == "hlo.dot"]
    assert [r.phase for r in products] == [Phase.FORWARD, *again, Phase.BACKWARD]
    assert again or {r.scope.split("/")[-1] for r in products} == {"block"}
    assert found[-1].phase is Phase.OPTIMIZER


def test_bodies_are_named_from_outside_before_xla_partitions() -> None:
    """The body is in a function that is called in a loop; both names belong to what is inside."""
    from jaxlib.mlir import ir

    from flint.passes.locations import decode_location
    from flint.passes.mlir import make_context, write_bytecode
    from flint.passes.partition.prepare.manual_names import with_whole_names

    text = """
        sdy.mesh @mesh = <["data"=4]>
        func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
          %y = call @layer(%x) : (tensor<8xf32>) -> tensor<8xf32> loc("jit(f)/jvp(layers)/call")
          return %y : tensor<8xf32>
        }
        func.func private @layer(%x: tensor<8xf32>) -> tensor<8xf32> {
          %y = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}]>]
              out_shardings=[<@mesh, [{"data"}]>] manual_axes={"data"} (%a: tensor<2xf32>) {
            %s = stablehlo.sine %a : tensor<2xf32> loc("inner/sin")
            %c = stablehlo.cosine %s : tensor<2xf32> loc("jit(f)/jvp(layers)/call/moe/cos")
            sdy.return %c : tensor<2xf32>
          } : (tensor<8xf32>) -> tensor<8xf32> loc("moe/shard_map")
          %z = stablehlo.negate %y : tensor<8xf32> loc("neg")
          return %z : tensor<8xf32>
        }"""
    with make_context():
        named = ir.Module.parse(with_whole_names(write_bytecode(ir.Module.parse(text))))
        found: dict[str, str] = {}

        def note(op: ir.Operation) -> ir.WalkResult:
            found[op.name] = decode_location(op.location)[0]
            return ir.WalkResult.ADVANCE

        named.operation.walk(note)
    assert found["stablehlo.sine"] == "jit(f)/jvp(layers)/call/moe/inner/sin"
    assert found["stablehlo.cosine"] == "jit(f)/jvp(layers)/call/moe/cos"
    assert found["stablehlo.negate"] == "neg"
    plain = b"no such operation here"
    assert with_whole_names(plain) == plain


@pytest.mark.parametrize(("recomputes", "executed"), [(False, 2), (True, 3)])
def test_what_runs_again_counts_as_executed_only(recomputes: bool, executed: int) -> None:
    found = by_hand(recomputes).estimate("h100-dgx")
    assert found.executed_flops * 2 == found.model_flops * executed
    assert found.hfu * 2 == pytest.approx(found.mfu * executed)


class Untagged:
    """A program in which most rows say no phase, as bodies of `shard_map` in HLO do not."""

    def __init__(self) -> None:
        self.builder = ProgramBuilder(Mesh(("data",), (2,)))
        self.weight = self.builder.add("parameter", Kind.PARAMETER, dtype="float32")

    def row(self, deps: list[int], phase: Phase = Phase.UNKNOWN, **columns: Any) -> int:
        opcode = columns.pop("opcode", "hlo.multiply")
        return self.builder.add(opcode, deps=deps, dtype="float32", phase=phase, **columns)

    def phases(self, *rows: int) -> list[str]:
        found = with_phases(self.builder.build()).phase
        return [Phase(int(found[row])).name for row in rows]


def test_what_the_backward_pass_reads_is_of_it_and_the_rest_is_the_update() -> None:
    p = Untagged()
    forward = p.row([p.weight], Phase.FORWARD)
    gradient = p.row([forward], Phase.BACKWARD)
    inside = p.row([gradient, p.weight])
    end = p.row([inside], Phase.BACKWARD)
    moment = p.row([p.weight])  # reads no gradient, but only the update reads it
    update = p.row([end, moment])
    assert p.phases(inside, moment, update) == ["BACKWARD", "OPTIMIZER", "OPTIMIZER"]


def test_an_update_before_a_second_forward_pass_is_no_gradient() -> None:
    p = Untagged()
    gradient = p.row([p.row([p.weight], Phase.FORWARD)], Phase.BACKWARD)
    moved = p.row([gradient, p.weight])
    again = p.row([p.row([moved], Phase.FORWARD)], Phase.BACKWARD)
    assert p.phases(moved, p.row([again])) == ["OPTIMIZER", "OPTIMIZER"]


def test_what_runs_again_reads_no_gradient() -> None:
    p = Untagged()
    kept = p.row([p.weight], Phase.FORWARD)
    gradient = p.row([kept], Phase.BACKWARD)
    weights = p.row([p.weight], Phase.BACKWARD, opcode="hlo.dynamic-slice")
    before = p.row([kept], Phase.REMAT)
    again = p.row([before, weights])
    after = p.row([again], Phase.REMAT)
    derivative = p.row([after, gradient])
    p.row([derivative, after], Phase.BACKWARD)
    assert p.phases(again, derivative) == ["REMAT", "BACKWARD"]


def test_a_loop_of_the_backward_pass_holds_nothing_else() -> None:
    p = Untagged()
    forward = p.row([p.weight], Phase.FORWARD)
    p.builder.begin_region(RegionKind.LOOP, 4)
    tagged = p.row([forward], Phase.BACKWARD)
    p.builder.begin_region(RegionKind.LOOP, 2)
    untagged = p.row([tagged])
    p.builder.end_region([])
    p.builder.end_region([])
    assert p.phases(untagged, p.row([untagged])) == ["BACKWARD", "OPTIMIZER"]


def test_derivatives_are_where_what_they_are_of_is() -> None:
    p = Untagged()
    forward = p.row([p.weight], Phase.FORWARD, location="model.py:3")
    gradient = p.row([forward], Phase.BACKWARD, location="model.py:9")
    derivative = p.row([gradient], location="model.py:3")
    update = p.row([derivative], location="model.py:20")
    nowhere = p.row([derivative])
    assert p.phases(derivative, update, nowhere) == ["BACKWARD", "OPTIMIZER", "OPTIMIZER"]
