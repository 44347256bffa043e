"""Spoilt command lines: meshes, settings, pipelines, options of every command, and paths."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import WORDS

_STEP = b"""import jax
import jax.numpy as jnp
import flint
from jax.sharding import NamedSharding, PartitionSpec as P


def loss(params, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None
    return (jax.lax.scan(layer, x, params)[0] ** 2).mean()


def step(params, x):
    return jax.grad(loss)(params, x)


@flint.entry(default=True)
def train(mesh, layers: int = 4, size: int = 64):
    def of(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)
    return flint.Step(step, (of(layers, size, size), of(32, size)))


@flint.entry(axes=("pipe", "data"))
def piped(mesh, layers: int = 4):
    def of(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)
    return flint.Pipeline(model=loss, params=of(layers, 64, 64), inputs=(of(32, 64),))
"""
_MESHES = (
    *(
        "2x2", "4", "1", "2x2x2", "data=2,model=2", "2x", "x2", "0x2", "-1x2", "1.5x2", "2×2",
        " 2x2 ",
    ),
    *(
        "data=2", "a=2,a=2", "a=2,b", "=2", "a=", "a=x", '{"a":"x"}', "a=2;b=2", "16777216",
        "16777217",
    ),
    *("x".join(["1"] * 302), ",".join(f"a{i}=1" for i in range(302)), "9" * 5000, "1e3", "٣x2"),
    *("\x1b[31m=2", " =2", "a\nb=2,c=2", "2x2x2x2x2", "pipe=2,data=2", "4096x4096", "a/b=2,c=2"),
)  # fmt: skip
_OPTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "capture": (
        ("--mesh", _MESHES),
        ("--mesh", _MESHES),
        (
            "--set",
            ("layers=0", "layers=-1", "size=0", "size=1", "size=99999999999", "nope=1", "layers"),
        ),
        ("--set", ("layers=x", "layers=1e3", "=1", "layers=", "layers=4=4", "size=1000000")),
        (
            "--trip-count",
            ("loop0=3", "loop0=-1", "nope=3", "loop0", "loop0=x", "=3", "loop0=9" * 30),
        ),
        ("--args", ("m.py:step", "m.py", "none.py:x", ":", "x" * 300)),
        ("--granularity", ("op", "kernel", "row")),
        ("--profile", ("xla-gpu", "xla-tpu", "megatron", "inductor", "eager", "gpu")),
        ("--cluster", ("h100-dgx", "none", "m.py", ".", "")),
        ("--map", ("model=nvlink", "x=y", "=", "data=ib,data=ib", "")),
        ("--ranks", ("0", "classes", "0-3", "3-0", "99", "-1", "0,0", "1e9", "", "0-999999999")),
        ("--groups", ("dims", "names", "x")),
        ("--tensor-size", ("output", "x")),
        ("--schedule", ("1f1b", "gpipe", "zb-h1", "none")),
        ("--microbatches", ("1", "4", "0", "-1", "1000000", "3", "x")),
        ("--chunks", ("1", "2", "0", "100000")),
        (
            "--cut",
            ("layers", "layers:2", "layers:0", "layers:99", "layers:2,1", "layers:balanced", "x", ""),
        ),
        ("-o", ("out", "m.py", "a/b/c", "x" * 300, "dir", "pipe", "a\x00b")),
    ),
    "estimate": (
        (
            "-c",
            ("h100-dgx", "v5p", "none", "", "m.py", "w.flint", ".", "x" * 300, "x" * 300 + ".toml"),
        ),
        ("--map", ("x=nvlink", "x=ib,y=nvlink", "w=nvlink", "x", "=", "x=,y=", "\x1b[31m=ib")),
        ("--overlap", ("xla", "blocking", "fsdp", "none", "")),
        ("--profile", ("none", "xla-gpu", "xla-tpu", "megatron", "x")),
        ("--perfetto", ("p.json", "dir", "w.flint", "x" * 300, "a/b")),
        ("--class", ("0", "1", "9", "all", "none", "a", "-1", "9" * 5000)),
        ("--window", ("0:1", "1:0", "-1:1", "nan:1", "0:inf", "x", ":", "0:1e308")),
    ),
    "explain": (
        ("--collective", ("0", "1", "99", "-1", "9" * 30)),
        ("--scope", ("*", "x", "[", "**", "a/" * 3000, "\x1b[31m", "")),
        ("--rank", ("0", "7", "8", "-1", "9" * 30)),
    ),
    "export": (
        ("-f", ("dot", "graphml", "json", "xml")),
        ("--rank", ("0", "7", "8", "-1", "9" * 30)),
        ("-o", ("g.dot", "dir", "w.flint", "x" * 300, "a/b/g.dot", "pipe")),
    ),
    "check": (),
}  # fmt: skip


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """One to three options of a command with odd values."""
    files: dict[str, bytes | Special] = {
        "m.py": _STEP,
        "w.flint": (bases / "small.flint").read_bytes(),
        "dir/file": b"x",
        "pipe": Special.FIFO,
    }
    command = rng.choice(("capture", "capture", "capture", *_OPTIONS))
    target = {"capture": rng.choice(("m.py", "m.py", "m.py:piped"))}.get(command, "w.flint")
    if rng.random() < 0.1:
        target = rng.choice((*WORDS, "pipe", "dir", "/dev/zero", "none.py", "a\x00b", "m.py:", ":"))
    words = [command, target]
    options = _OPTIONS[command]
    for name, values in rng.sample(options, min(len(options), rng.choice((1, 1, 2, 3)))):
        value = rng.choice(values if rng.random() < 0.9 else WORDS)
        words += [name, value]
    if command == "capture" and "--mesh" not in words:
        words += ["--mesh", "pipe=2,data=2" if target.endswith("piped") else "2x2"]
    if command == "estimate" and "-c" not in words:
        words += ["-c", "h100-dgx"]
    if rng.random() < 0.3 and command != "check":
        words.append("--json")
    words = [w.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for w in words]
    change = " ".join(w[:30] for w in words)
    return Case("options", number, change, files, (tuple(words),))
