"""Every example lowers with every option, and holds the matrix products that its model implies."""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from flint.steps.entry import entry_mark
from flint.steps.pipeline import Layers, Pipeline
from flint.steps.step import Step
from tests.auto_mesh import auto_mesh
from tests.long import long_but

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COMMAND = re.compile(r"flint capture examples/(\w+_jax)\.py --mesh ([\dx]+)((?: --set [\w=+.-]+)*)")
PIPELINE = re.compile(
    r"flint capture examples/(\w+_jax)\.py(:\w+)? --mesh (pipe=[\w=,]+)((?: --[\w-]+ [\w=+.-]+)*)"
)
POOLS = re.compile(
    r"flint capture examples/(\w+_jax)\.py --mesh (pool=[\w=,]+)((?: --set [\w=+]+)*)"
)

#: Example, its default mesh, and each value of its options that is not the default.
OPTIONS = {
    ("llama_jax", "64x8"): [
        "model=70b parallel=tp",
        "model=405b parallel=dp",
        "parallel=fsdp",
        "parallel=tp+sp",
        "parallel=fsdp+tp+sp",
        "layers=unrolled num_layers=2",
        "layers=unrolled num_layers=2 remat=none",
        "seq=1024 batch=128",
    ],
    ("mixtral_jax", "64x8"): [
        "dispatch=einsum remat=none",
        "remat=none",
        "seq=1024 batch=1024 num_layers=4 capacity=2.0",
    ],
    ("ring_attention_jax", "4x16"): ["causal=false", "seq=32768 batch=16"],
    ("spmd_pipeline_jax", "4x8"): ["num_layers=8 seq=512", "microbatches=16 batch=64"],
    ("resnet50_jax", "32x2"): ["batch=128 image=256"],
    ("serve_jax", "4"): ["new=64 context=0", "cache=fp8", "model=qwen3-30b-a3b num_layers=2"],
    ("decode_jax", "8x8"): [
        "model=405b",
        "cache=fp8",
        "cache=int8 tokens=4",
        "cache=int8 tokens=4 layers=unrolled num_layers=2",
        "batch=32 length=1024 num_layers=2",
    ],
}


@cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(name: str, wanted: str = "") -> Any:
    """The marked function of an example: the one named, the default, or the only one."""
    marked = {n: f for n, f in vars(example(name)).items() if entry_mark(f)}
    if wanted:
        return marked[wanted]
    default = [f for f in marked.values() if entry_mark(f).default]
    [function] = default or marked.values()
    return function


def build(name: str, mesh: str, options: str, wanted: str = "") -> Any:
    """Call a marked function of an example as the command line does."""
    function = entry(name, wanted)
    mark = entry_mark(function)
    assert mark is not None
    sizes = tuple(int(size.rpartition("=")[2]) for size in re.split("[x,]", mesh))
    defaults = inspect.signature(function).parameters
    given: dict[str, Any] = {}
    for key, _, value in (part.partition("=") for part in options.split()):
        kind = type(defaults[key].default)
        given[key] = value == "true" if kind is bool else kind(value)
    return function(auto_mesh(sizes, mark.axes), **given)


def trace(step: Step) -> Any:
    return jax.jit(step.fn, donate_argnums=tuple(step.donate_argnums)).trace(*step.args)


def documented_commands() -> set[tuple[str, str, str]]:
    """The commands of the README and of the first lines of each example."""
    found = COMMAND.findall(documentation())
    return {(n, m, s.replace(" --set ", " ").strip()) for n, m, s in found}


def documentation() -> str:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    text += "".join(p.read_text(encoding="utf-8") for p in sorted(EXAMPLES.glob("*_jax.py")))
    return text.replace("\\\n       ", "")


def documented_pipelines() -> list[tuple[str, str, str, str]]:
    """Example, entry, mesh and options of the commands that capture a pipeline."""

    def settings(options: str) -> str:
        pairs = re.findall(r"--([\w-]+) (\S+)", options)
        return " ".join(v if n == "set" else f"{n}={v}" for n, v in pairs if n != "output")

    found = PIPELINE.findall(documentation())
    return sorted({(n, e.lstrip(":"), m, settings(s)) for n, e, m, s in found})


def documented_pools() -> list[tuple[str, str, str]]:
    """Example, mesh and options of the commands that capture two pools."""
    found = POOLS.findall(documentation())
    return sorted({(n, m, s.replace(" --set ", " ").strip()) for n, m, s in found})


def cases() -> list[Any]:
    """The first options of each on a small mesh, the others, which are long, on that of its documentation."""
    listed = {
        (name, mesh if number else "2x2" if "x" in mesh else "2", options)
        for (name, mesh), values in OPTIONS.items()
        for number, options in enumerate(values)
    }
    quick = [(n, "2x2" if "x" in m else "2", values[0]) for (n, m), values in OPTIONS.items()]
    return long_but(quick, sorted(listed | documented_commands()))


@pytest.mark.parametrize(("name", "mesh", "options"), cases())
def test_example_lowers(name: str, mesh: str, options: str) -> None:
    if "layers=unrolled" in options and "num_layers" not in options:
        options += " num_layers=4"  # each of a list is written as the first: 80 say no more
    step = build(name, mesh, options)
    assert isinstance(step, Step)
    lowered = trace(step).lower(lowering_platforms=("cuda",))
    module = lowered.compiler_ir("stablehlo")
    assert f"{math.prod(map(int, mesh.split('x')))}" in str(
        module.operation.attributes["mhlo.num_partitions"]
    )
    donated = sum(len(jax.tree.leaves(step.args[i])) for i in step.donate_argnums)
    main = next(f for f in module.body if f.operation.attributes["sym_name"].value == "main")
    arguments = [set(dict(zip_attributes(a))) for a in main.operation.attributes["arg_attrs"]]
    reused = [a for a in arguments if a & {"tf.aliasing_output", "jax.buffer_donor"}]
    assert len(reused) == donated


def zip_attributes(dictionary: Any) -> Iterator[tuple[str, Any]]:
    return ((named.name, named.attr) for named in dictionary)


def test_every_example_is_documented() -> None:
    files = {path.stem for path in EXAMPLES.glob("*_jax.py")}
    others = {name for name, *_ in (*documented_pipelines(), *documented_pools())}
    assert {name for name, _, _ in documented_commands()} | others == files
    assert {name for name, _ in OPTIONS} | others == files


@pytest.mark.parametrize(("name", "wanted", "mesh", "options"), documented_pipelines())
def test_pipeline_example_traces(name: str, wanted: str, mesh: str, options: str) -> None:
    """Its parts fit together, and the boundary is the sharding of what goes between them."""
    step = build(name, mesh, options, wanted)
    assert isinstance(step, Pipeline)
    if not step.stages:
        assert jax.eval_shape(step.model, step.params, *step.inputs).shape == ()
        return
    values = tuple(step.inputs)
    for part in step.stages:
        values = (jax.eval_shape(part.fn, part.params, *values),)
        if isinstance(part, Layers):
            assert len(step.boundary) == values[0].ndim
    assert step.loss is not None
    assert jax.eval_shape(step.loss, *values, *step.targets).shape == ()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama_jax", "parallel=sp"),
        ("llama_jax", "model=9b"),
        ("mixtral_jax", "dispatch=magic"),
        ("decode_jax", "cache=int3"),
        ("decode_jax", "layers=list"),
    ],
)
def test_unknown_value_is_refused(name: str, options: str) -> None:
    with pytest.raises(ValueError, match=options.partition("=")[0]):
        build(name, "2x2", options)


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            jaxpr = getattr(item, "jaxpr", item)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def count_products(jaxpr: Any, times: int, found: Counter[str]) -> Counter[str]:
    """Number and flops (a multiply-add is 2) of dot_generals; those with batch dimensions apart."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracting, _), (batch, _) = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            length = math.prod(shape[i] for i in contracting)
            kind = "batched" if batch else "linear"
            found[kind] += times
            found["flops"] += times * 2 * math.prod(eqn.outvars[0].aval.shape) * length
        inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        if eqn.primitive.name == "shard_map":  # shapes inside are those of one device
            inner *= eqn.params["mesh"].size
        for body in inner_jaxprs(eqn.params):
            count_products(body, inner, found)
    return found


def products(name: str, mesh: str, options: str) -> Counter[str]:
    return count_products(trace(build(name, mesh, options)).jaxpr.jaxpr, 1, Counter())


def dense_layer_flops(c: Any, tokens: int, seen: int) -> int:
    """Forward products of one Llama layer without its MLP; attention reads `seen` places."""
    kv_dim = c.num_kv_heads * c.head_dim
    q_dim = c.num_heads * c.head_dim
    return 2 * tokens * c.dim * (2 * q_dim + 2 * kv_dim) + 2 * 2 * tokens * seen * q_dim


def llama_forward_flops(c: Any, tokens: int, seen: int) -> int:
    layer = dense_layer_flops(c, tokens, seen) + 3 * 2 * tokens * c.dim * c.ffn_dim
    return c.num_layers * layer + 2 * tokens * c.dim * c.vocab


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
def test_llama_8b_products(layers: str) -> None:
    found = products("llama_jax", "64x8", f"remat=none layers={layers}")
    assert found["linear"] == 3 * (7 * 32 + 1) == 675
    assert found["batched"] == 3 * 2 * 32
    forward = llama_forward_flops(example("llama_jax").CONFIGS["8b"], 64 * 8192, 8192)
    assert found["flops"] == 3 * forward
    assert round(found["flops"] / 512 / 1e12, 3) == 59.303


@pytest.mark.parametrize("model", ["8b", "70b", "405b"])
def test_llama_recomputation_repeats_the_layers(model: str) -> None:
    """All products of a layer but its last, whose result no gradient reads."""
    c = example("llama_jax").CONFIGS[model]
    found = products("llama_jax", "64x8", f"model={model}")
    assert found["linear"] == (3 * 7 + 6) * c.num_layers + 3
    assert found["batched"] == (3 * 2 + 2) * c.num_layers


@pytest.mark.parametrize("mesh", ["2x2", "64x8"])
def test_mixtral_products(mesh: str) -> None:
    config = example("mixtral_jax").Config
    devices, seq = math.prod(map(int, mesh.split("x"))), 4096
    tokens, c = devices * seq, config()
    layer = dense_layer_flops(c, tokens, seq) + 2 * tokens * c.dim * c.num_experts
    slots = devices * c.num_experts * c.slots(seq)
    layer += 3 * 2 * slots * c.dim * c.ffn_dim
    step = 3 * (c.num_layers * layer + 2 * tokens * c.dim * c.vocab)

    alltoall = products("mixtral_jax", mesh, "remat=none")
    assert alltoall["flops"] == step
    # Dispatch: forward and the gradient of x. Combine: forward and both gradients.
    one_hot = 2 * tokens * c.num_experts * c.slots(seq) * c.dim
    einsum = products("mixtral_jax", mesh, "remat=none dispatch=einsum")
    assert einsum["flops"] == step + 5 * one_hot * c.num_layers


@pytest.mark.parametrize("mesh", ["2x1", "4x16"])
def test_ring_attention_products(mesh: str) -> None:
    c = example("ring_attention_jax").Config()
    seq, tokens = 131_072, 131_072 * int(mesh.split("x")[0])
    found = products("ring_attention_jax", mesh, "")
    attention = 2 * 2 * tokens * seq * c.num_heads * c.head_dim
    linear = dense_layer_flops(c, tokens, seq) - attention
    assert found["flops"] == 3 * linear + attention * 7 // 2  # the scores are computed again


@pytest.mark.parametrize("cache", ["bf16", "int8"])
@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("layers", ["scan", "unrolled"])
def test_decode_products(cache: str, tokens: int, layers: str) -> None:
    c = replace(example("decode_jax").CONFIGS["70b"], num_layers=80 if layers == "scan" else 4)
    options = f"tokens={tokens} cache={cache} layers={layers} num_layers={c.num_layers}"
    found = products("decode_jax", "8x8", options)
    assert found["linear"] == tokens * (7 * c.num_layers + 1)
    assert found["flops"] == tokens * llama_forward_flops(c, 16 * 8, 8192)


def test_published_sizes() -> None:
    """Parameters as the models' authors count them (the 8B model: 8.03 billion)."""

    def size(name: str, options: str = "") -> int:
        leaves = jax.tree.leaves(build(name, "2x2", options).args[0])
        return sum(math.prod(leaf.shape) for leaf in leaves)

    assert size("resnet50_jax") == 25_557_032
    assert size("llama_jax") == size("decode_jax", "model=8b") == 8_030_261_248
    assert size("llama_jax", "model=70b") == 70_553_706_496
    assert size("llama_jax", "model=405b") == 405_853_388_800
    assert size("mixtral_jax") == 46_702_792_704


@pytest.mark.parametrize(("model", "billions"), [("6.7b", 6.7), ("13b", 12.9), ("175b", 174.6)])
def test_published_sizes_of_gpt3(model: str, billions: float) -> None:
    """As table 2.1 counts them, the head being the embedding (the vocabulary is padded here)."""
    embed, layers, head = build("gpt3_jax", "2x2x2", f"model={model}").stages

    def size(params: Any) -> int:
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    total = size(embed.params) + layers.count * size(layers.params)
    total += size({n: p for n, p in head.params.items() if n != "table"})
    assert total == pytest.approx(billions * 1e9, rel=0.01)
    if model == "175b":
        assert total == 174_615_846_912
