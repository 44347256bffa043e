"""Spoilt programs in files: StableHLO as text, bytecode and artifact, HLO as text and protobuf."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import WORDS, spoil_bytes, spoil_text

_TYPES = (
    *("tensor<*xf32>", "tensor<?x16xf32>", "tensor<0xf32>", "tensor<f32>", "tensor<8x16xi999>"),
    *("tensor<8x16xf32", "tuple<>", "!stablehlo.token", "tensor<99999999x99999999xf32>", "i32"),
    *("tensor<8x16xcomplex<f64>>", "tensor<8x16x!quant.uniform<i8:f32, 1.0>>", "memref<4xf32>"),
    *("f32[8,-16]", "f32[99999999,99999999]", "f32[]", "(f32[], s32[])", "token[]", "u4[8,16]"),
)
MESHES = (("--mesh", "2x2"), ("--mesh", "data=2,model=2"), ())


def stablehlo(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt StableHLO module."""
    name = rng.choice(("module.mlir", "module.mlir", "module.mlirbc", "module.bc", "made.mlir"))
    if name == "made.mlir":
        change, data = rng.choice(_made_modules())(rng)
    elif name == "module.mlir" and rng.random() < 0.8:
        words = WORDS if rng.random() < 0.6 else _TYPES
        change, text = spoil_text(rng, (bases / name).read_text("utf-8"), words=words)
        data = text.encode("utf-8", "surrogatepass")
    else:
        change, data = spoil_bytes(rng, (bases / name).read_bytes())
    return _case("stablehlo", rng, number, name, change, data)


def hlo(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt HLO module."""
    name = rng.choice(("module.txt", "module.pb", "module.pb"))
    data: bytes | Special = (bases / name).read_bytes()
    assert isinstance(data, bytes)
    if rng.random() < 0.2:
        change, data = spoil_bytes(rng, data)
    elif name == "module.txt":
        words = WORDS if rng.random() < 0.6 else _TYPES
        change, text = spoil_text(rng, data.decode(), words=words)
        data = text.encode("utf-8", "surrogatepass")
    else:
        change, data = _spoil_proto(rng, data)
    return _case("hlo", rng, number, name, change, data)


def _case(
    kind: str, rng: random.Random, number: int, name: str, change: str, data: bytes | Special
) -> Case:
    mesh = rng.choice(MESHES)
    if name.startswith("module.") and name.endswith(("txt", "pb")):
        mesh = rng.choice((("--mesh", "data=2,model=4"), ("--mesh", "data=2,model=4"), ()))
    command = ("capture", name, *mesh, "--json")
    commands = (command, ("capture", name, *mesh, "-o", "out"), ("check", "out"))
    return Case(kind, number, f"{name}: {change}", {name: data}, commands)


def _spoil_proto(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """One to three fields of instructions, shapes or computations with other values."""
    from flint.passes.hlo.module import message_class

    proto = message_class("HloModule").FromString(data)
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        computation = rng.choice(proto.computations)
        message = rng.choice((rng.choice(computation.instructions), computation, proto))
        while True:
            fields = [f for f, _ in message.ListFields()]
            inner = [f for f in fields if f.message_type is not None]
            if not fields or not inner or rng.random() < 0.5:
                break
            value = getattr(message, rng.choice(inner).name)
            message = rng.choice(value) if hasattr(value, "add") else value
        done.append(_spoil_field(rng, message))
    return "proto " + ", ".join(done), proto.SerializeToString()


def _spoil_field(rng: random.Random, message: Any) -> str:
    fields = [f for f in message.DESCRIPTOR.fields if f.message_type is None]
    if not fields:
        return "nothing"
    field = rng.choice([f for f, _ in message.ListFields() if f.message_type is None] or fields)
    numbers = (-1, 0, 1, 2, 3, 13, 2**31 - 1, 2**62, -(2**62), 10**6)
    configs = (b'{"known_trip_count":{"n":"-3"}}', b'{"known_trip_count":{"n":"x"}}', b"[", b"\xff")
    value: Any
    for value in rng.sample((*numbers, *WORDS, *configs, True), 40):
        try:
            held = getattr(message, field.name)
            if hasattr(held, "append"):
                held[:] = [*held[rng.randrange(2) :], value]
            else:
                setattr(message, field.name, value)
            return f"{message.DESCRIPTOR.name}.{field.name}={str(value)[:20]}"
        except (TypeError, ValueError, IndexError):
            continue
    return "nothing"


def _made_modules() -> tuple[Any, ...]:
    return (_recursive, _doubling, _nested, _nested, _constants, _huge, _locations)


def _function(name: str, body: str) -> str:
    return (
        f"func.func @{name}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n"
        "return %x : tensor<4xf32>\n}\n"
    )


def _call(number: int, name: str) -> str:
    return f"%{number} = func.call @{name}(%x) : (tensor<4xf32>) -> tensor<4xf32>"


def _recursive(rng: random.Random) -> tuple[str, bytes]:
    count = rng.choice((1, 2, 300))
    names = ["main", *(f"f{i}" for i in range(1, count))]
    text = "".join(_function(n, _call(0, names[(i + 1) % count])) for i, n in enumerate(names))
    return f"a circle of {count} functions", text.encode()


def _doubling(rng: random.Random) -> tuple[str, bytes]:
    depth, often = rng.choice((3, 12, 20, 40)), rng.choice((2, 3))
    body = "\n".join(
        f"%a{i} = stablehlo.add %x, %x : tensor<4xf32>" for i in range(rng.choice((0, 120)))
    )
    text = "".join(
        _function(
            "main" if i == 0 else f"f{i}", "\n".join(_call(k, f"f{i + 1}") for k in range(often))
        )
        for i in range(depth)
    )
    return f"{often}^{depth} calls", (text + _function(f"f{depth}", body)).encode()


def _nested(rng: random.Random) -> tuple[str, bytes]:
    depth = rng.choice((5, 50, 99, 150, 1000, 20_000))
    inner = "stablehlo.return %x : tensor<4xf32>"
    for i in range(depth):
        other = "stablehlo.return %x : tensor<4xf32>"
        end = f"\nstablehlo.return %r{i} : tensor<4xf32>" if i < depth - 1 else ""
        inner = (
            f"%c{i} = stablehlo.constant dense<true> : tensor<i1>\n"
            f'%r{i} = "stablehlo.if"(%c{i}) ({{ {inner} }}, {{ {other} }})'
            f" : (tensor<i1>) -> tensor<4xf32>{end}"
        )
    return f"{depth} nested branches", _function("main", inner).encode()


def _constants(rng: random.Random) -> tuple[str, bytes]:
    size = 10 ** rng.choice((3, 9, 15))
    body = f"%c = stablehlo.constant dense<1.0> : tensor<{size}xf32>"
    return f"a constant of {size}", _function("main", body).encode()


def _huge(rng: random.Random) -> tuple[str, bytes]:
    n = rng.choice((2_000_000, 10**9, 10**12, 2**62))
    kind = f"tensor<{n}x{n}xf32>"
    text = (
        f"func.func @main(%x: {kind}) -> {kind} {{\n"
        f"%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}\n"
        f"return %0 : {kind}\n}}\n"
    )
    return f"a product of {n}", text.encode()


def _locations(rng: random.Random) -> tuple[str, bytes]:
    name = rng.choice(("\\1B[31m", "\\00", "x" * 100_000, "\\FF\\FE", "a/b/c"))
    body = f'%0 = stablehlo.add %x, %x : tensor<4xf32> loc("{name}"("{name}":1:2))'
    return "odd locations", _function("main", body).encode()
