"""StableHLO files: every form is read alike, and anything else is one clear error."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.tracing import Trace, trace_file
from tests.auto_mesh import auto_mesh

GSPMD = b"""func.func @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"})
    -> tensor<8xf32> { return %x : tensor<8xf32> }"""
SDY_MESH = b'\nsdy.mesh @mesh = <["data"=8]>'
MESH = auto_mesh((4, 2), ("data", "model"))


def step(x: Any, w: Any) -> Any:
    with jax.named_scope("head"):
        return jax.nn.relu(x @ w).sum()


def arguments() -> tuple[Any, Any]:
    return (
        jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(MESH, P("data"))),
        jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(MESH, P(None, "model"))),
    )


@cache
def exported() -> Any:
    return jax.export.export(jax.jit(step), platforms=["cuda"])(*arguments())


@cache
def forms() -> dict[str, bytes]:
    """One program in every form."""
    import io

    lowered = jax.jit(step).trace(*arguments()).lower(lowering_platforms=("cuda",))
    module = lowered.compiler_ir("stablehlo")
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    artifact = exported().mlir_module_serialized
    return {
        "text": module.operation.get_asm(enable_debug_info=True).encode(),
        "bytecode": out.getvalue(),
        "artifact": artifact,
        # what jax.export serialises: a FlatBuffer with the artifact behind its length
        "export": b"\x1c\x00\x00\x00" * 6 + len(artifact).to_bytes(4, "little") + artifact + b"\0" * 9,
    }  # fmt: skip


def read(data: bytes, tmp_path: Path, mesh: Mesh | None = None) -> Trace:
    path = tmp_path / "model.mlir"
    path.write_bytes(data)
    return trace_file(path, mesh)


def facts(trace: Trace) -> list[Any]:
    """Everything but constants, which export places elsewhere."""
    program = trace.program
    program.verify()
    return [
        (r.opcode, r.shape, r.flops, r.comm_bytes, str(r.group), r.name, r.scope)
        for r in map(program.row, range(len(program)))
        if not r.opcode.endswith(".constant")
    ]


@pytest.mark.parametrize("form", ["text", "bytecode", "artifact", "export"])
def test_every_form_gives_what_tracing_gives(form: str, tmp_path: Path) -> None:
    traced = flint.trace(step, MESH, *arguments())
    from_file = read(forms()[form], tmp_path)
    assert from_file.mesh.shape == {"data": 4, "model": 2}
    assert facts(from_file) == facts(traced)
    summary = from_file.summary()
    assert [c.comm_bytes for c in summary.classes[0].collectives] == [4]


def test_a_serialised_export_is_read(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    assert facts(read(bytes(exported().serialize()), tmp_path)) == facts(
        read(forms()["artifact"], tmp_path)
    )


def test_the_mesh_is_the_files(tmp_path: Path) -> None:
    artifact = forms()["artifact"]
    assert str(read(artifact, tmp_path, Mesh(("a", "b"), (4, 2))).mesh) == "data=4,model=2"
    with pytest.raises(FlintError) as caught:
        read(artifact, tmp_path, Mesh(("data", "model"), (8, 2)))
    assert (caught.value.code, caught.value.message) == (
        "FL105",
        "model.mlir was lowered for the mesh data=4,model=2, not for data=8,model=2",
    )


def test_a_module_without_a_mesh(tmp_path: Path) -> None:
    text = b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    with pytest.raises(FlintError, match="contains no mesh and none was given"):
        read(text, tmp_path)
    assert read(text, tmp_path, Mesh.parse("4x2")).mesh.size == 8


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", "FL301", "is empty"),
        (b" \n", "FL301", "model.mlir is empty"),
        (b"module {}", "FL302", "model.mlir has no function 'main' (it has no functions)"),
        (b"func.func {", "FL302", "model.mlir is not a StableHLO module: "),
        (b"\x7fELF\xff\xfe", "FL302", "neither StableHLO text nor MLIR bytecode"),
        (b"ML\xefR", "FL302", "model.mlir is not a StableHLO module: "),
        (b"ML\xefR\rStableHLO_v1.0.0", "FL302", "model.mlir is not a StableHLO module: "),
        (GSPMD, "FL105", "contains no mesh and none was given"),
        (GSPMD.replace(b"{\n", b"{") + SDY_MESH, "FL302", "annotates shardings as mhlo.sharding"),
    ],
)
def test_what_is_no_module(data: bytes, code: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        read(data, tmp_path)
    assert caught.value.code == code and message in caught.value.message


def test_a_syntax_error_has_a_place_in_the_file(tmp_path: Path) -> None:
    text = b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %y : tensor<4xf32>\n}"
    with pytest.raises(FlintError) as caught:
        read(text, tmp_path)
    assert caught.value.place is not None and caught.value.place.startswith("model.mlir:2:")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        trace_file(tmp_path / "absent.mlir")
    assert caught.value.code == "FL301" and "No such file" in caught.value.message


def test_dynamic_dimensions_are_refused(tmp_path: Path) -> None:
    text = b"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"
    with pytest.raises(FlintError, match="has dynamic dimensions: tensor<\\?xf32>"):
        read(text, tmp_path, Mesh.parse("4x2"))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A copy with some bits flipped, cut short, overwritten or with bytes put in."""
    result = bytearray(data)
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            for _ in range(rng.choice([1, 3, 20])):
                result[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del result[at:]
        case 2:
            result[at : at + 8] = b"\xff" * 8
        case _:
            result[at:at] = rng.randbytes(5)
    return bytes(result)


@pytest.mark.long
def test_damaged_files_are_refused_or_read_and_never_crash_the_process(tmp_path: Path) -> None:
    rng = random.Random(7)
    names = ("text", "bytecode", "artifact", "export")
    codes = []
    for number in range(40):  # thousands: benchmarks.bad_inputs
        data = damaged(forms()[names[number % 4]], rng)
        try:
            read(data, tmp_path).program.verify()
            codes.append("read")
        except FlintError as error:
            codes.append(error.code)
    # FL105 when the damage hides the mesh, FL402 when what is read cannot be partitioned
    assert set(codes) <= {"FL301", "FL302", "FL402", "FL105", "read"}
    assert codes.count("FL302") > 20


def function(name: str, *calls: str, body: str = "") -> str:
    lines = [
        f"%{i} = func.call @{c}(%x) : (tensor<4xf32>) -> tensor<4xf32>" for i, c in enumerate(calls)
    ]
    text = "\n".join([*lines, body, "return %x : tensor<4xf32>"])
    return f"func.func @{name}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{text}\n}}\n"


def nested(depth: int) -> str:
    true = "stablehlo.constant dense<true> : tensor<i1>"
    inner = "stablehlo.return %x : tensor<4xf32>"
    for i in range(depth):
        case = f'"stablehlo.if"(%c{i}) ({{ {inner} }}, {{ stablehlo.return %x : tensor<4xf32> }})'
        done = f"stablehlo.return %r{i} : tensor<4xf32>" if i < depth - 1 else ""
        inner = f"%c{i} = {true}\n%r{i} = {case} : (tensor<i1>) -> tensor<4xf32>\n{done}"
    return inner


DOUBLING = "".join(function(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(40)) + function("f40")
UNRANKED = "func.func @main(%x: tensor<*xf32>) -> tensor<*xf32> { return %x : tensor<*xf32> }"
DECLARED = "func.func private @f(tensor<4xf32>) -> tensor<4xf32>\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (function("main", "main"), "call one another without end: main -> main"),
        (
            function("main", "a") + function("a", "b") + function("b", "a"),
            "without end: a -> b -> a",
        ),
        (function("main", "f0") + DOUBLING, "operations with its calls written out"),
        (function("main", "f") + DECLARED, "function 'f', which 'main' calls, has no body"),
        (UNRANKED, "has tensors without a rank: tensor<*xf32>"),
        (function("main", body=nested(120)), "operations inside more than 100 others"),
        (
            function("main", "f0")
            + "".join(function(f"f{i}", f"f{i + 1}") for i in range(150))
            + function("f150"),
            "begins a chain of 101 calls",
        ),
    ],
    ids=["itself", "cycle", "doubling", "declared", "unranked", "nested", "chain"],
)
def test_modules_without_end_or_sizes_are_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        read(text.encode(), tmp_path, Mesh.parse("2x2"))
    assert caught.value.code == "FL302" and said in caught.value.message, caught.value


@pytest.mark.parametrize(
    ("text", "mesh", "code", "said"),
    [
        (
            'sdy.mesh @m = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>\n',
            None,
            "FL302",
            "an order of its own",
        ),
        ("module attributes {mhlo.num_replicas = 4 : i32} {", "4", "FL302", "runs as 4 replicas"),
        (GSPMD.decode(), "1", "FL105", "sharded over several devices"),
    ],
)
def test_devices_that_flint_would_number_otherwise(
    text: str, mesh: str | None, code: str, said: str, tmp_path: Path
) -> None:
    main = "" if "@main" in text else function("main") + "}" * text.endswith("{")
    with pytest.raises(FlintError, match=said) as caught:
        read((text + main).encode(), tmp_path, mesh and Mesh.parse(mesh))
    assert caught.value.code == code


def test_a_module_without_main_says_what_is_taken_for_it(tmp_path: Path) -> None:
    trace = read(function("step").encode(), tmp_path, Mesh.parse("2x2"))
    assert trace.warnings == (
        "model.mlir has no function 'main': its only public one, 'step', is taken for it",
    )
