"""Pipelines whose passes a compiler makes: cut, compiled one by one, put together again.

XLA's SPMD partitioner for CPUs stands in for the compilers, which need plugins: it reads the same
modules and gives the same kind of file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from flint.errors import FlintError
from flint.frontends.jax_pipeline import capture_jax_pipeline
from flint.ir.builder import ProgramBuilder
from flint.ir.made_by import CompiledBy
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.program import Collective, Kind, Phase, Program
from flint.ir.workload import Workload
from flint.passes.compilers.compiled import OptimisedModule
from flint.passes.compilers.positions import position_compiler
from flint.passes.compilers.positions.cut_module import cut_body
from flint.passes.mlir import functions_of, make_context, write_bytecode
from flint.passes.partition.one_position import on_all_positions
from flint.passes.partition.xla import divided
from flint.steps.captured import Body, Captured, Role
from flint.steps.lowering import Lowering
from flint.tracing import trace
from tests.jax_pipelines import MESH, pipeline
from tests.pool_steps import Case

COMPILED: list[Captured] = []


def stand_in(captured: Captured, lowering: Lowering) -> OptimisedModule:
    """Partition instead of compiling, and remember what was asked for."""
    COMPILED.append(captured)
    module = divided(captured).part
    by = CompiledBy(lowering.compiler, "h100", "XLA for CPUs", f"{captured.mesh.size} GPUs")
    return OptimisedModule(module, by)


@pytest.fixture(autouse=True, scope="module")
def compiles() -> Iterator[None]:
    """The stand-in in the place of the compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position_compiler, "compile_captured", stand_in)
        yield


def compiled(**options: Any) -> Workload:
    COMPILED.clear()
    return trace(pipeline(**options), MESH, compiler="xla-gpu").workload


@pytest.fixture(scope="module")
def usual(compiles: None) -> tuple[Workload, list[Captured]]:
    """The decoder, and what was compiled for it."""
    return compiled(), list(COMPILED)


def product_flops(program: Program) -> int:
    products = (program.product > 0) | (program.dims[:, 2] > 1)
    return int((program.flops * program.trips)[products].sum())


def multiplying_phases(program: Program) -> set[int]:
    """The phases of products: layers are checkpointed."""
    return set(program.phase[program.product > 0].tolist())


def over_pipe(program: Program) -> Counter[tuple[str, int]]:
    """Messages and collectives between stages with their bytes, by how often a step has them."""
    found: Counter[tuple[str, int]] = Counter()
    for row in map(program.row, np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist()):
        if "pipe" in str(row.group or row.route):
            found[row.opcode, row.comm_bytes] += int(program.trips[row.number])
    return found


def of_gradients(program: Program) -> int:
    """Bytes that a step sums over data."""
    sums = np.isin(program.collective, (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER))
    rows = map(program.row, np.flatnonzero(sums).tolist())
    data = (row for row in rows if "data" in str(row.group))
    return sum(row.comm_bytes * int(program.trips[row.number]) for row in data)


@pytest.fixture(scope="module")
def captured() -> Workload:
    return trace(pipeline(), MESH).workload


def test_a_pipeline_is_compiled_pass_by_pass(
    captured: Workload, usual: tuple[Workload, list[Captured]]
) -> None:
    found, modules = usual
    found.verify()
    assert [m.name for m in modules] == ["step, forward pass", "step, backward pass"] * 2
    assert {m.mesh.shape["pipe"] for m in modules} == {1}
    assert [c.name for c in found.classes] == [c.name for c in captured.classes]
    for one, other in zip(found.programs, captured.programs, strict=True):
        assert product_flops(one) == product_flops(other) > 0
        assert over_pipe(one) == over_pipe(other)
        assert of_gradients(one) == of_gradients(other)
        assert multiplying_phases(one) == multiplying_phases(other)
    assert "warnings" not in found.metadata  # every sum over data waits for the last microbatch
    by = found.compiled_by
    assert by is not None and by.memory is None and by.topology == "4 GPUs"
    assert found.metadata["partitioner"] == "none"


def test_what_waits_for_the_backward_pass_is_as_large(
    captured: Workload, usual: tuple[Workload, list[Captured]]
) -> None:

    def kept(workload: Workload) -> list[tuple[int, int]]:
        positions = workload.metadata["pipeline"]["positions"]
        return [(s["in_flight"], s["saved_bytes_per_microbatch"]) for p in positions for s in p]

    for (flight, size), (other_flight, other_size) in zip(
        kept(usual[0]), kept(captured), strict=True
    ):
        assert flight == other_flight
        assert size == pytest.approx(other_size, rel=0.05)


def test_norm_and_update_are_modules_of_their_own() -> None:
    options = {"optimizer": "adamw", "clip_norm": 1.0}
    found = compiled(**options)
    whole = trace(pipeline(**options), MESH).workload
    assert sorted(Counter(c.name.partition(",")[0] for c in COMPILED)) == ["norm", "step", "update"]
    for one, other in zip(found.programs, whole.programs, strict=True):
        held = [int(p.result_bytes[p.kind == Kind.PARAMETER].sum()) for p in (one, other)]
        assert held[0] == held[1]
        assert over_pipe(one) == over_pipe(other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "zb-h1"}, "runs a backward pass in two parts"),
        ({"reshard_after_forward": False}, "kept gathered all step long"),
    ],
)
def test_what_belongs_to_no_pass_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FlintError, match=said) as error:
        compiled(**options)
    assert error.value.code == "FL240" and "compiler" in str(error.value.help)
    assert COMPILED == []


# the cut ------------------------------------------------------------------------------------------


@cache
def bodies() -> tuple[Body, ...]:
    found = capture_jax_pipeline(pipeline(), MESH, "model.py")
    return tuple(body.step for body in found.bodies)


def run(module: bytes, values: list[Any]) -> list[Any]:
    """Execute a module on one device of the host."""
    from jaxlib import xla_client

    [device] = jax.devices("cpu")[:1]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.executable_build_options.use_shardy_partitioner = True
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    devices = xla_client.DeviceList((device,))
    program = device.client.compile_and_load(module, devices, options)
    found = program.execute_sharded([jax.device_put(v, device) for v in values])
    return [np.asarray(array) for [array] in found.disassemble_into_single_device_arrays()]


def on_one_device(body: Body) -> Body:
    """The body on a mesh of one device."""
    from jaxlib.mlir import ir

    with make_context():
        text = ir.Module.parse(body.captured.module).operation.get_asm(enable_debug_info=True)
        alone = re.sub(r'("(?:pipe|data|model)"=|num_partitions = )\d+', r"\g<1>1", text)
        module = write_bytecode(ir.Module.parse(alone))
    return replace(body, captured=replace(body.captured, module=module))


@pytest.mark.parametrize("number", [0, 1])
def test_both_passes_compute_what_the_whole_does(number: int) -> None:
    body = on_one_device(bodies()[number])
    values = arguments_of(body)
    whole = run(body.captured.module, values)
    cut = cut_body(body)
    assert cut.backward is not None and cut.saved > 0
    forward = run(cut.forward.module, [values[i] for i in cut.forward.arguments])
    saved = forward[len(forward) - cut.saved :]
    backward = run(cut.backward.module, [[*values, *saved][i] for i in cut.backward.arguments])
    for i, result in [*zip(cut.forward.results, forward, strict=True)]:
        if i >= 0:
            np.testing.assert_allclose(result, whole[i], rtol=1e-5, atol=1e-6)
    for i, result in zip(cut.backward.results, backward, strict=True):
        np.testing.assert_allclose(result, whole[i], rtol=1e-4, atol=1e-6)


def arguments_of(body: Body) -> list[Any]:
    """Random values for the arguments of a body: small whole numbers where they are indices."""
    from jaxlib.mlir import ir

    random = np.random.default_rng(0)
    found: list[Any] = []
    with make_context():
        module = ir.Module.parse(body.captured.module)  # owns what is in it
        main = functions_of(module)["main"]
        for argument in main.regions[0].blocks[0].arguments:
            kind = ir.RankedTensorType(argument.type)
            if "i32" in str(kind):
                found.append(random.integers(0, 100, kind.shape, dtype=np.int32))
            else:
                found.append(random.standard_normal(kind.shape).astype(np.float32))
    return found


def test_an_operation_of_both_passes_is_named() -> None:
    body = bodies()[1]
    loss = next(i for i, port in enumerate(body.results) if port.role is Role.LOSS)
    gradient = next(i for i, port in enumerate(body.results) if port.role is Role.GRADIENT)
    swapped = list(body.results)
    swapped[loss], swapped[gradient] = swapped[gradient], swapped[loss]
    with pytest.raises(FlintError, match="of the forward and of the backward pass") as error:
        cut_body(replace(body, results=tuple(swapped)))
    assert error.value.code == "FL240" and "jax_pipelines.py" in str(error.value.place)


def test_inference_has_one_pass() -> None:
    found = compiled(loss=None, targets=())
    assert [c.name for c in COMPILED] == ["step, forward pass"] * 2
    assert not any((p.phase == Phase.BACKWARD).any() for p in found.programs)


def test_ranks_of_one_position_are_those_of_all() -> None:
    b = ProgramBuilder(Mesh(MESH.names, (1, 2, 2)))
    listed, pairs = Group(ranks=((0, 3), (1, 2))), Route(pairs=((0, 3),))
    b.add("x", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, group=listed)
    b.add("y", Kind.COLLECTIVE, collective=Collective.PERMUTE, route=pairs)
    first = on_all_positions(b.build(), MESH, "pipe")
    assert first.groups[0].ranks == ((0, 3), (1, 2), (4, 7), (5, 6))
    assert first.routes[0].pairs == ((0, 3), (4, 7))
    middle = on_all_positions(b.build(), Mesh(("data", "pipe", "model"), (2, 2, 2)), "pipe")
    assert middle.groups[0].ranks == ((0, 5), (1, 4), (2, 7), (3, 6))
    assert middle.routes[0].pairs == ((0, 5), (2, 7))


# pools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["scan", "stacked"])
def test_pools_send_what_they_send_without_a_compiler(form: str) -> None:
    case = Case(forms=(form, form))
    COMPILED.clear()
    found = trace(case.pools(), case.mesh, compiler="xla-gpu").workload
    found.verify()
    assert [m.name for m in COMPILED] == ["prefill", "decode"]
    assert {m.mesh.shape["pool"] for m in COMPILED} == {1}
    whole = case.trace()
    for one, other in zip(found.programs, whole.programs, strict=True):
        assert sent(one) == sent(other)
    by = found.compiled_by
    assert by is not None and by.memory is None and found.metadata["partitioner"] == "none"


def sent(program: Program) -> dict[tuple[Kind, str], int]:
    """Bytes of messages by direction and route."""
    found: dict[tuple[Kind, str], int] = {}
    for row in map(program.row, np.flatnonzero(program.kind >= Kind.SEND).tolist()):
        key = row.kind, str(row.route)
        found[key] = found.get(key, 0) + row.comm_bytes * int(program.trips[row.number])
    return found
