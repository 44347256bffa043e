"""Shardings of PyTorch steps: patterns, placements, plans and FSDP, from names and shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from jax.sharding import PartitionSpec as P

from flint.errors import FlintError
from flint.frontends.torch_graph.shardings.packed import Packed
from flint.frontends.torch_graph.shardings.tensors import (
    NamedTensor,
    Shardings,
    matching,
    plan_shardings,
)
from flint.ir.mesh import Mesh
from flint.steps.step import TorchStep

OPEN = P.UNCONSTRAINED
MESH = Mesh.parse("data=2,model=4")


def tensor(name: str, *shape: int, floating: bool = True) -> NamedTensor:
    return NamedTensor((name,), shape, "bf16" if floating else "i64", floating)


def block(number: int) -> list[NamedTensor]:
    at = f"model.layers.{number}"
    return [
        tensor(f"{at}.self_attn.q_proj.weight", 64, 32),
        tensor(f"{at}.self_attn.q_proj.bias", 64),
        tensor(f"{at}.self_attn.o_proj.weight", 32, 64),
        tensor(f"{at}.self_attn.o_proj.bias", 32),
        tensor(f"{at}.norm.weight", 32),
    ]


PARAMETERS = [
    NamedTensor(("model.embed_tokens.weight", "lm_head.weight"), (128, 32), "bf16"),
    *block(0),
    *block(1),
]
BUFFERS = [tensor("model.rotary.inv_freq", 8)]
INPUTS = [
    tensor("tokens", 16, 128, floating=False),
    tensor("labels", 16, 128, floating=False),
    tensor("mask", 128, 128),
    tensor("scale"),
]
MODULES = [
    "",
    "model",
    "model.embed_tokens",
    "lm_head",
    *[
        f"model.layers.{n}{rest}"
        for n in (0, 1)
        for rest in ("", ".self_attn", ".self_attn.q_proj", ".self_attn.o_proj", ".norm")
    ],
]


def plan(
    shardings: dict[Any, Any] | None = None,
    activations: dict[str, Any] | None = None,
    fsdp: str | Sequence[str] = (),
    mesh: Mesh = MESH,
    parameters: Sequence[NamedTensor] = PARAMETERS,
) -> Shardings:
    step = TorchStep(
        torch.nn.Identity(), shardings=shardings or {}, activations=activations or {}, fsdp=fsdp
    )
    return plan_shardings(
        step, mesh, parameters=parameters, buffers=BUFFERS, inputs=INPUTS, modules=MODULES
    )


def at_rest(found: Shardings, name: str) -> Any:
    return found.argument(name, found.shapes[name])


def refused(code: str, *words: str, **options: Any) -> FlintError:
    with pytest.raises(FlintError) as caught:
        plan(**options)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    return caught.value


# patterns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.*.c", ["a.b.c", "a.0.c"]),
        ("a.**.c", ["a.b.c", "a.0.c", "a.c"]),
        ("**.c", ["a.b.c", "a.0.c", "a.c", "c"]),
        ("a.**", ["a.b.c", "a.0.c", "a.c", "a.b.c.d"]),
        ("*", ["c", "cache[0]"]),
        ("cache[0]", ["cache[0]"]),
        ("a.?.c", ["a.b.c", "a.0.c"]),
        ("**", ["a.b.c", "a.0.c", "a.c", "c", "a.b.c.d", "cache[0]"]),
        ("a.b", []),
    ],
)
def test_stars_stay_within_a_part_and_double_stars_do_not(pattern: str, names: list[str]) -> None:
    assert matching(pattern, ["a.b.c", "a.0.c", "a.c", "c", "a.b.c.d", "cache[0]"]) == names


def test_the_last_pattern_written_counts() -> None:
    found = plan(
        {
            "model.layers.1.self_attn.q_proj.weight": ("data", None),
            "model.layers.*.self_attn.*.weight": ("model", None),
            "model.layers.0.self_attn.q_proj.weight": (None, "model"),
        }
    )
    assert at_rest(found, "model.layers.0.self_attn.q_proj.weight") == P(None, "model")
    assert at_rest(found, "model.layers.1.self_attn.q_proj.weight") == P("model", None)
    assert at_rest(found, "model.layers.1.norm.weight") == P()


def test_any_name_of_a_tied_parameter_places_it() -> None:
    found = plan({"lm_head.weight": ("model",)})
    assert at_rest(found, "model.embed_tokens.weight") == P("model")
    assert at_rest(found, "lm_head.weight") == P("model")


def test_buffers_and_inputs_have_names_too() -> None:
    found = plan({"tokens": "data", "**.inv_freq": "model"})
    assert at_rest(found, "tokens") == P("data")
    assert at_rest(found, "model.rotary.inv_freq") == P("model")
    assert at_rest(found, "labels") == P()


def test_a_pattern_without_match_names_the_nearest() -> None:
    refused(
        "FL221",
        "'model.layers.*.self_attn.wq_proj.weight' matches no parameter, buffer or input",
        "did you mean 'model.layers.*.self_attn.q_proj.weight'?",
        shardings={"model.layers.*.self_attn.wq_proj.weight": ("model", None)},
    )
    refused("FL221", "did you mean 'tokens'?", shardings={"token": "data"})
    refused(
        "FL221",
        "matches no module; did you mean 'model.layers.*.self_attn'?",
        activations={"model.layers.*.attn": ("data",)},
    )


# placements -----------------------------------------------------------------------------------


def dtensor(*names: str) -> tuple[Any, ...]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import Partial, _StridedShard

    made = {
        "R": Replicate(),
        "S0": Shard(0),
        "S1": Shard(1),
        "S-1": Shard(-1),
        "S5": Shard(5),
        "I4": _StridedShard(0, split_factor=4),
        "I3": _StridedShard(0, split_factor=3),
        "partial": Partial(),
    }
    return tuple(made[n] for n in names)


@pytest.mark.parametrize(
    ("placement", "spec"),
    [
        (None, P()),
        ((None, None), P(None, None)),
        ("model", P("model")),
        (["model", None], P("model", None)),
        ((("data", "model"), None), P(("data", "model"), None)),
        ((None, ["model", "data"]), P(None, ("model", "data"))),
        (P(None, "model"), P(None, "model")),
        (("S0", "R"), P("data")),
        (("R", "S1"), P(None, "model")),
        (("S0", "S-1"), P("data", "model")),
        (("S0", "S0"), P(("data", "model"))),
        (("I4", "S0"), P(("model", "data"))),
        (("R", "R"), P()),
    ],
)
def test_placements(placement: Any, spec: P) -> None:
    if isinstance(placement, tuple) and placement[0] in ("S0", "R", "I4"):
        placement = dtensor(*placement)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert at_rest(plan({name: placement}), name) == spec


@pytest.mark.parametrize(
    ("placement", "code", "words"),
    [
        (("tensor", None), "FL102", "mesh has no axis 'tensor'"),
        (("model", "model"), "FL106", "uses mesh axis 'model' twice"),
        ((None, None, "model"), "FL103", "has 3 dimensions, but the array has 2"),
        ((3, None), "FL222", "3 in the placement of"),
        (7, "FL222", "7 is not a placement"),
        (("?", "model"), "FL222", "leaves a dimension open, which is only allowed for activations"),
        (("S0",), "FL222", "1 DTensor placements, but the mesh has 2 axes"),
        (("R", "S5"), "FL103", "dimension 5"),
        (("partial", "R"), "FL222", "is impossible for a stored tensor"),
        (("I3", "S0"), "FL222", "interleaved with 3 shards"),
    ],
)
def test_placements_that_cannot_be(placement: Any, code: str, words: str) -> None:
    if isinstance(placement, tuple) and placement[0] in ("S0", "R", "partial", "I3"):
        placement = dtensor(*placement)
    refused(
        code,
        words,
        "shardings['model.layers.0.self_attn.q_proj.weight']",
        shardings={"model.layers.0.self_attn.q_proj.weight": placement},
    )


def test_a_size_that_does_not_divide_names_the_parameter_its_shape_and_the_axis() -> None:
    refused(
        "FL103",
        "mesh axis 'model' (4) does not divide dimension 0 (10) of odd",
        "bf16[10]",
        shardings={"odd": ("model",)},
        parameters=[tensor("odd", 10)],
    )


# FSDP -----------------------------------------------------------------------------------------


def test_fsdp_shards_at_rest_and_gathers_at_use() -> None:
    found = plan(
        {"**.q_proj.weight": ("model", None), "**.o_proj.weight": (None, "model")}, fsdp="data"
    )
    wq, wo = (f"model.layers.1.self_attn.{w}_proj.weight" for w in "qo")
    assert at_rest(found, wq) == P(("model", "data"))
    assert found.at_use(wq, (64, 32)) == P("model", None)
    assert at_rest(found, wo) == P("data", "model")
    assert found.gradient(wo, (32, 64)) == P("data", "model")
    assert found.at_use(wo, (32, 64)) == P(None, "model")
    assert at_rest(found, "lm_head.weight") == P("data")
    assert found.at_use("lm_head.weight", (128, 32)) == P()
    assert found.warnings == ()


def test_without_fsdp_nothing_is_gathered() -> None:
    found = plan({"**.q_proj.weight": ("model", None)})
    assert found.at_use("model.layers.0.self_attn.q_proj.weight", (64, 32)) is None


def test_fsdp_takes_the_next_dimension_and_says_when_there_is_none() -> None:
    odd = [
        tensor("next", 3, 8),
        tensor("none", 3, 5),
        tensor("scalar"),
        tensor("count", 8, floating=False),
    ]
    found = plan(fsdp=("data", "model"), parameters=odd)
    assert at_rest(found, "next") == P(None, ("data", "model"))
    assert [at_rest(found, n) for n in ("none", "scalar", "count")] == [P(), P(), P()]
    assert found.warnings == (
        "none is not fully sharded: data and model divide none of its dimensions [3, 5]",
    )


def test_what_is_placed_over_an_fsdp_axis_is_not_gathered() -> None:
    found = plan({"**.q_proj.weight": ("data", None)}, fsdp="data")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (at_rest(found, name), found.at_use(name, (64, 32))) == (P("data", None), None)


def test_fsdp_shards_the_batch_of_inputs_that_no_pattern_names() -> None:
    found = plan({"labels": (None, "data")}, fsdp="data")
    specs = [at_rest(found, n) for n in ("tokens", "labels", "mask", "scale")]
    assert specs == [P("data"), P(None, "data"), P(), P()]
    assert at_rest(found, "model.rotary.inv_freq") == P()


def test_fsdp_over_unknown_and_repeated_axes() -> None:
    refused("FL102", "did you mean 'data'?", fsdp="dat")
    refused("FL106", fsdp=("data", "data"))


def test_an_axis_of_one_device_shards_nothing() -> None:
    found = plan(fsdp="data", mesh=Mesh.parse("data=1,model=8"))
    assert at_rest(found, "lm_head.weight") == P()
    assert found.at_use("lm_head.weight", (128, 32)) is None


def test_optimizer_state_is_sharded_where_its_sizes_are_the_parameters() -> None:
    found = plan({"**.q_proj.weight": ("data", "model")})
    name = "model.layers.0.self_attn.q_proj.weight"
    assert found.argument(name, ()) == P()
    assert found.argument(name, (64, 1)) == P("data", None)
    assert found.argument(name, (1, 32)) == P(None, "model")


# activations ----------------------------------------------------------------------------------


def test_activations_by_module_and_index() -> None:
    found = plan(
        activations={
            "model.layers.*": ("data", "model", None),
            "model.layers.*.self_attn[1]": ("?", "model"),
            "model.layers.1": None,
        }
    )
    assert found.activation("model.layers.0", 0, (16, 128, 32)) == P("data", "model", None)
    assert found.activation("model.layers.1", 0, (16, 128, 32)) == P()
    assert found.activation("model.layers.0", 1, (16, 128, 32)) is None
    assert found.activation("model.layers.0.self_attn", 1, (8, 8)) == P(OPEN, "model")
    assert found.activation("model.layers.0.norm", 0, (16, 128, 32)) is None


def test_an_activation_that_cannot_be_placed_names_the_module() -> None:
    found = plan(activations={"model.layers.*": ("data", "model", None)})
    with pytest.raises(FlintError, match=r"dimension 1 \(6\) of what model.layers.0 returns"):
        found.activation("model.layers.0", 0, (16, 6, 32))


# plans ----------------------------------------------------------------------------------------

LLAMA = {
    "model.embed_tokens": "embedding_rowwise",
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "lm_head": "colwise_gather_output",
}


def test_a_plan_shards_weights_biases_and_outputs() -> None:
    found = plan({"tp_plan": LLAMA})
    at = "model.layers.1.self_attn"
    names = [f"{at}.{n}" for n in ("q_proj.weight", "q_proj.bias", "o_proj.weight", "o_proj.bias")]
    assert [at_rest(found, n) for n in names] == [P("model"), P("model"), P(None, "model"), P()]
    assert at_rest(found, "lm_head.weight") == P("model")
    assert at_rest(found, "model.layers.0.norm.weight") == P()
    shape = (16, 128, 64)
    assert found.activation(f"{at}.q_proj", 0, shape) == P(OPEN, OPEN, "model")
    assert found.activation(f"{at}.o_proj", 0, shape) == P(OPEN, OPEN, None)
    assert found.activation("lm_head", 0, shape) == P(OPEN, OPEN, None)
    assert found.activation(f"{at}.q_proj", 0, (16, 128, 6)) is None
    assert found.warnings == ()


def test_a_plan_of_the_inner_model_and_the_axis_by_name() -> None:
    inner = {k.removeprefix("model."): v for k, v in LLAMA.items()} | {"layers.*.mlp": "colwise"}
    found = plan({("tp_plan", "data"): inner})
    assert at_rest(found, "model.layers.0.self_attn.q_proj.weight") == P("data")
    assert found.warnings == ("'layers.*.mlp' of the tensor-parallel plan matches nothing",)


def test_patterns_after_a_plan_override_it() -> None:
    found = plan({"tp_plan": LLAMA, "**.q_proj.weight": None})
    assert at_rest(found, "model.layers.0.self_attn.q_proj.weight") == P()
    assert at_rest(found, "model.layers.0.self_attn.q_proj.bias") == P("model")


def test_sequence_parallel_plans_constrain_dimension_1() -> None:
    found = plan({"tp_plan": {**LLAMA, "model.layers.*.norm": "sequence_parallel"}})
    at, shape = "model.layers.0", (16, 128, 32)
    assert found.activation(f"{at}.norm", 0, shape) == P(OPEN, "model", None)
    assert found.activation(f"{at}.self_attn.q_proj", 0, shape) == P(OPEN, None, "model")
    assert at_rest(found, f"{at}.norm.weight") == P()


def test_plans_over_expert_weights() -> None:
    experts = [
        tensor("model.layers.0.experts.gate_up_proj", 8, 64, 32),
        tensor("model.layers.0.experts.down_proj", 8, 32, 64),
    ]
    rules = {
        "model.layers.*.experts.gate_up_proj": "packed_colwise",
        "model.layers.*.experts.down_proj": "rowwise",
    }
    found = plan({"tp_plan": rules}, parameters=experts)
    assert [at_rest(found, t.names[0]) for t in experts] == [
        P(None, "model"),
        P(None, None, "model"),
    ]
    assert found.packed == {"model.layers.0.experts": Packed(size=64, shards=4)}
    linear = plan({"tp_plan": {"model.layers.*.self_attn.q_proj": "packed_colwise"}})
    assert linear.packed["model.layers.1.self_attn"] == Packed(size=64, shards=4)
    by_expert = plan(
        {("tp_plan", "data"): dict.fromkeys(rules, "grouped_gemm")}, parameters=experts
    )
    assert [at_rest(by_expert, t.names[0]) for t in experts] == [P("data"), P("data")]


def test_a_plan_leaves_whole_what_the_axis_does_not_divide() -> None:
    odd = [tensor("model.embed_tokens.weight", 127, 32)]
    found = plan({"tp_plan": {"model.embed_tokens": "embedding_rowwise"}}, parameters=odd)
    assert at_rest(found, "model.embed_tokens.weight") == P()
    assert found.warnings == (
        "model.embed_tokens.weight stays whole: 'model' (4) does not divide dimension 0 (127)",
    )


@pytest.mark.parametrize(
    ("shardings", "code", "words"),
    [
        ({"tp_plan": {"lm_head": "columnwise"}}, "FL222", "did you mean 'colwise'?"),
        ({"tp_plan": None}, "FL222", "model.tp_plan"),
        ({"tp_plan": {"head": "colwise"}}, "FL221", "matches no module or parameter"),
        ({("tp_plan", "tensor"): LLAMA}, "FL102", "mesh has no axis 'tensor'"),
        ({("plan", "tensor"): LLAMA}, "FL222", "is not the name of a tensor"),
    ],
)
def test_plans_that_cannot_be(shardings: dict[Any, Any], code: str, words: str) -> None:
    refused(code, words, shardings=shardings)


def test_a_plan_needs_to_know_its_axis() -> None:
    refused(
        "FL222",
        '("tp_plan", "y")',
        shardings={"tp_plan": LLAMA},
        mesh=Mesh.parse("x=2,y=4"),
    )
