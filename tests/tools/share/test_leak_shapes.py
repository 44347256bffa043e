"""Shapes of products name public models, without a capture of them and whatever the structure is."""

from __future__ import annotations

from pathlib import Path

import pytest

import flint
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Program
from flint.tools.share.leaks.report import leaks_of
from flint.tools.share.leaks.shape_attack import ModelShapes, guess_by_shapes, public_shapes

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "kineto"


def products(*dims: tuple[int, int, int, int]) -> Program:
    builder = ProgramBuilder(Mesh(("d",), (1,)))
    for batch, m, n, k in dims:
        builder.add(
            "aten.mm", op=OpClass.MATMUL, dims=(batch, m, n, k), flops=2 * batch * m * n * k,
            dtype="bfloat16", shape=(m, n), operand_bytes=2, result_bytes=2 * m * n,
        )  # fmt: skip
    return builder.build()


def program_of(model: ModelShapes, shards: int = 1) -> Program:
    """A layer of a model for 640 tokens, queries, keys and values in one product where it has that."""
    weights = [(out // shards, into) for out, into in model.layers] + list(model.usual)
    lengths = [(12, length, length, 64) for length in model.lengths]
    return products(*((1, 640, out, into) for out, into in weights), *lengths)


@pytest.mark.parametrize("model", public_shapes(), ids=lambda m: m.name)
@pytest.mark.parametrize("shards", [1, 4])
def test_a_model_is_named_by_its_own_shapes(model: ModelShapes, shards: int) -> None:
    guess = guess_by_shapes([program_of(model, shards)])
    assert model.name in {m.model for m in guess.named}
    assert len(guess.named) < 4


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("h100_vit", "ViT-B/16"),
        ("mi300x_bert-small", "BERT-small"),
        ("h100_qwen1.5-0.5b", "Qwen1.5-0.5B"),
        ("mi300x_resnet_train_rank0of8", ""),
        ("b200_eager_rank0of8", ""),
    ],
)
def test_real_profiles(file: str, model: str) -> None:
    workload = flint.import_profiles(DATA / f"{file}.json.gz").workload
    assert [m.model for m in guess_by_shapes(workload.programs).named] == [model] * bool(model)


def test_the_report_says_it_of_a_profile_that_is_like_none(tmp_path: Path) -> None:
    trace = flint.import_profiles(DATA / "h100_vit.json.gz")
    leaks = leaks_of(trace.workload)
    assert "shapes of products: ViT-B/16; its weights have 100.0%" in leaks.text()
    assert leaks.to_json()["shapes"]["matches"][0]["model"] == "ViT-B/16"
    strange = flint.Workload.single(products((1, 640, 1000, 1003)))
    assert "shapes of products: none of 33 public models" in leaks_of(strange).text()


def test_gradients_have_the_same_weights() -> None:
    """What is reduced differs: over rows of the batch, over outputs, over inputs."""
    forward = [(1, 640, 11008, 4096), (1, 640, 4096, 11008), (1, 640, 4096, 4096)]
    turned = [(1, k, n, m) for _, m, n, k in forward] + [(1, m, k, n) for _, m, n, k in forward]
    named = guess_by_shapes([products(*turned)]).named
    assert [m.model for m in named] == ["Llama-2-7B"]
