"""Training programs of PyTorch's frameworks, as their users write them: totals against hand counts.

Runs where the packages of requirements-torch.txt are installed (docs/howto/frameworks.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "torch_programs"

# --- the Llama of the programs: four layers of 256, on 512 tokens of a rank -----------------------

TOKENS, RANKS = 4 * 128, 8
LAYER = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688  # weights of products
HEAD = 256 * 1000
PARAMETERS = 4 * LAYER + 2 * HEAD + 9 * 256  # with the embedding and nine norms
#: Scores and values of one layer, forward; backward makes them 2.5 times.
ATTENTION = 4 * 4 * 8 * 128 * 128 * 32
TRAINING = 6 * TOKENS * (4 * LAYER + HEAD) + 4 * ATTENTION * 7 // 2
#: What checkpointing of the layers calculates once more: all but the last product, of whose result
#: nothing is kept.
AGAIN = 4 * (2 * TOKENS * (LAYER - 256 * 688) + ATTENTION)


def captured(program: str, *arguments: str, ranks: int = RANKS, steps: int = 2) -> Any:
    """The summary of a capture as classes of ranks."""
    command = [sys.executable, "-m", "flint", "capture", str(PROGRAMS / f"{program}.py")]
    command += ["--mesh", str(ranks), "--world", "--json", "--steps", str(steps), "--"]
    done = subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["summary"]["classes"]


def needs(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def moved(rank_class: Any, collective: str, over: str | None = None) -> tuple[int, int]:
    """Count and bytes of a collective, over all groups or those of one kind."""
    found = [
        entry
        for entry in rank_class["collectives"]
        if entry["collective"] == collective and over in (None, entry["over"])
    ]
    return sum(e["count"] for e in found), sum(e["comm_bytes"] for e in found)


def sharded(rank_class: Any, bytes_a_parameter: int = 8) -> None:
    """Weights in f32 and Adam's two averages, an eighth of them on each rank."""
    held = rank_class["argument_bytes"]
    assert held["parameter"] == 4 * PARAMETERS // RANKS
    assert (
        0 <= held["optimizer"] - bytes_a_parameter * PARAMETERS // RANKS <= 512
    )  # counts of steps


# --- HuggingFace, Lightning, accelerate -----------------------------------------------------------


def test_trainer_with_ddp_and_checkpoints(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    (only,) = captured("hf_trainer", "ddp", str(tmp_path / "out"))
    assert only["matmul_flops"] == TRAINING + AGAIN
    assert moved(only, "all_reduce")[1] == 4 * PARAMETERS
    assert only["argument_bytes"]["parameter"] == 4 * PARAMETERS
    assert not list(tmp_path.rglob("*.safetensors"))


def test_trainer_with_fsdp2(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    (only,) = captured("hf_trainer", "fsdp2", str(tmp_path / "out"))
    assert only["matmul_flops"] == TRAINING
    # Layers, embedding with norm, and head: six groups; all but the root are gathered again.
    assert moved(only, "reduce_scatter") == (6, 2 * PARAMETERS)
    sharded(only)


@pytest.mark.parametrize("version", ["1", "2"])
def test_accelerate(version: str) -> None:
    needs("transformers", "accelerate")
    (only,) = captured("accelerate_fsdp", version)
    assert only["matmul_flops"] == TRAINING
    assert moved(only, "reduce_scatter")[1] == 2 * PARAMETERS
    sharded(only)


def test_fabric() -> None:
    needs("lightning", "transformers")
    (only,) = captured("fabric_fsdp")
    assert only["matmul_flops"] == TRAINING
    # Five units, forward; the four layers once more, backward.
    layers = 4 * (LAYER + 2 * 256)
    assert moved(only, "all_gather") == (9, 2 * (PARAMETERS + layers) // RANKS)
    assert moved(only, "reduce_scatter") == (5, 2 * PARAMETERS)
    sharded(only)


def test_lightning() -> None:
    needs("lightning")
    (only,) = captured("lightning_ddp", "ddp")
    weights = 2 * 64 * 256
    parameters = weights + 256 + 64
    assert only["matmul_flops"] == 8 * (6 * weights - 2 * 64 * 256)  # none for the batch's gradient
    assert only["argument_bytes"]["parameter"] == 4 * parameters
    assert 0 <= only["argument_bytes"]["optimizer"] - 8 * parameters <= 32
    assert moved(only, "all_reduce")[1] == 4 * parameters + 4  # and the loss that is logged


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_pretrained_weights_generate(cache: str, tmp_path: Path) -> None:
    needs("transformers")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
        "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 1000, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_header(tmp_path / "model.safetensors")
    (only,) = captured("generate", str(tmp_path), cache, ranks=1, steps=0)
    # 16 tokens of two texts, then seven more of each; the head reads the last one alone.
    products = 2 * (2 * (16 + 7) * 4 * LAYER + 2 * 8 * HEAD)
    attention = only["matmul_flops"] - products
    # A static cache is read to its end: 16 + 8 tokens, but for the last, which nobody reads.
    lengths = [17 + i for i in range(7)] if cache == "dynamic" else [23] * 7
    # Passes that are alike are a loop of the one in the middle: of six, half a token off for each.
    expected = 4 * 4 * 2 * 256 * (16 * 16 + sum(lengths))
    assert attention == pytest.approx(expected, rel=0.01)
    assert only["argument_bytes"]["parameter"] == 2 * PARAMETERS


def write_header(path: Path) -> None:
    """A safetensors file of the weights, of which nothing but the header is there."""
    shapes = {"model.embed_tokens": [1000, 256], "lm_head": [1000, 256], "model.norm": [256]}
    for layer in range(4):
        at = f"model.layers.{layer}"
        for name, rows in (("q", 256), ("k", 128), ("v", 128), ("o", 256)):
            shapes[f"{at}.self_attn.{name}_proj"] = [rows, 256]
        shapes[f"{at}.mlp.gate_proj"] = shapes[f"{at}.mlp.up_proj"] = [688, 256]
        shapes[f"{at}.mlp.down_proj"] = [256, 688]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}.{name}"] = [256]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        offsets = [place, place + size]
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
        place += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


# --- DeepSpeed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["1", "2"])
def test_deepspeed_shards_the_optimizer(stage: str) -> None:
    needs("deepspeed", "transformers")
    (only,) = captured("deepspeed_zero", stage)
    assert only["matmul_flops"] == TRAINING
    assert only["argument_bytes"]["parameter"] == 2 * PARAMETERS
    held = only["argument_bytes"]["optimizer"]  # an eighth of weights and averages, in f32
    assert 0 <= held - 12 * PARAMETERS // RANKS <= 512
    assert moved(only, "all_reduce")[1] - 2 * PARAMETERS <= 64
    assert moved(only, "all_gather") == (1, 2 * PARAMETERS // RANKS)


def test_deepspeed_shards_everything() -> None:
    needs("deepspeed", "transformers")
    (only,) = captured("deepspeed_zero", "3")
    assert only["matmul_flops"] == TRAINING
    assert moved(only, "reduce_scatter")[1] == 2 * PARAMETERS
    # Live parameters stay from forward to backward in a model of this size; norms are kept always.
    norms = 9 * 256
    assert moved(only, "all_gather")[1] == 2 * PARAMETERS // RANKS
    assert only["argument_bytes"]["parameter"] <= 2 * (PARAMETERS + 7 * norms) // RANKS + 2**21


# --- Megatron-core: four layers of 512 on 256 tokens, four microbatches ----------------------------

WIDE = 512 * (512 + 2 * 256) + 512 * 512 + 512 * 4096 + 2048 * 512  # weights of a layer
VOCABULARY = 512 * 32000
ALL_TOKENS = 4 * 256
SCORES = 4 * 4 * 256 * 256 * 512  # of one layer, all microbatches, forward


def training(layers: int, head: bool, tp: int = 2) -> int:
    """FLOPs of products on one rank of a stage."""
    products = 6 * ALL_TOKENS * (layers * WIDE + head * VOCABULARY)
    return (products + layers * SCORES * 7 // 2) // tp


@pytest.mark.parametrize("chunks", [0, 2])
def test_megatron_in_three_dimensions(chunks: int) -> None:
    """Tensor, sequence, pipeline and data parallel, and the distributed optimizer."""
    needs("megatron")
    # The first rank of the tensor axis counts what all of them hold in the norm of the gradients.
    first, *_, last = captured("megatron_gpt", "--vp", str(chunks))
    parameters = (2 * WIDE + VOCABULARY) // 2 + 2 * 2 * 512
    # A kernel that scales gradients declares one operation for each, and counts whole.
    for found, head in ((first, False), (last, True)):
        assert 0 <= found["matmul_flops"] - training(2, head) - parameters // 2 <= 1024
    # A layer gathers activations twice, its backward pass four times, and scatters twice in each;
    # the embedding scatters once and gathers once, the head gathers twice and scatters once.
    activations = 256 * 512 * 2  # of a microbatch
    model = "data:(4)2"
    assert moved(first, "all_gather", model) == (2 * 4 * 6 + 4, 52 * activations // 2)
    assert moved(last, "all_gather", model) == (2 * 4 * 6 + 8, 56 * activations // 2)
    assert moved(first, "reduce_scatter", model) == (36, 36 * activations)
    assert moved(last, "reduce_scatter", model) == (36, 36 * activations)
    # Maximum, sum and target of the sharded loss; gradients of norms.
    assert moved(last, "all_reduce", model)[0] == 4 * 3 + 1
    data = "data:(2)2"
    assert abs(moved(first, "reduce_scatter", data)[1] - 4 * parameters) <= 2048
    assert abs(moved(first, "all_gather", data)[1] - parameters) <= 2048
    held = first["argument_bytes"]["optimizer"]  # weights and averages in f32, half of them
    assert abs(held - 12 * parameters // 2) <= 8192
    messages = (1 + 2 * (chunks == 2)) * 4 * activations // 2
    assert moved(first, "send")[1] == moved(last, "send")[1] == messages


def test_megatron_with_experts() -> None:
    """Four experts over two ranks: two of four for each token."""
    needs("megatron")
    only, *_ = captured("megatron_gpt", "--experts", "4", "--ep", "2", "--pp", "1")
    attention = 512 * (512 + 2 * 256) + 512 * 512
    expert = 512 * 4096 + 2048 * 512
    dense = 6 * ALL_TOKENS * (4 * attention + VOCABULARY) // 2
    # Each rank has half of the tokens of its group, and half of the experts of all of them.
    sparse = 6 * ALL_TOKENS * 4 * 2 * expert // 2
    router = 6 * ALL_TOKENS * 4 * 512 * 4 // 2
    scores = 4 * SCORES * 7 // 2 // 2
    # Gradients are scaled where they are updated: dense ones over four ranks, experts over two.
    shared = (4 * attention + 2 * VOCABULARY) // 2 + 4 * 4 * 512 + 9 * 512
    scaled = shared // 4 + 4 * 2 * expert // 2 // 2
    declared = only["matmul_flops"] - (dense + sparse + router + scores)
    assert abs(declared - scaled) <= 1024
    # Out and back, for tokens and for their weights; forward and backward; four layers.
    assert moved(only, "all_to_all")[0] % (4 * 4 * 2) == 0
