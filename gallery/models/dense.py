"""Dense decoders with the blocks of Llama 3, by their published configurations: training, prefill, decode.

Blocks and steps are those of `examples/llama_jax.py`, `disaggregated_jax.py` and `decode_jax.py`. What these
models have beside (biases of projections, norms of queries and keys) is under one percent of the work and is
left out. Configurations are the `config.json` files that are published with the weights.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import decode_jax
import disaggregated_jax
import llama_jax
from jax.sharding import AbstractMesh

import flint

#: Width, layers, heads, width of the feed-forward layers, heads of keys and values, vocabulary.
SIZES = {
    "qwen2.5-7b": (3584, 28, 28, 18_944, 4, 152_064),
    "qwen2.5-72b": (8192, 80, 64, 29_568, 8, 152_064),
    "mistral-7b": (4096, 32, 32, 14_336, 8, 32_000),
    "phi-4": (5120, 40, 40, 17_920, 10, 100_352),
    "olmo-2-7b": (4096, 32, 32, 11_008, 32, 100_352),
}
NAMES = ("dim", "num_layers", "num_heads", "ffn_dim", "num_kv_heads", "vocab")

for module in (llama_jax, disaggregated_jax, decode_jax):
    for name, sizes in SIZES.items():
        module.CONFIGS[name] = module.Config(**dict(zip(NAMES, sizes, strict=True)))

train, decode = llama_jax.train, decode_jax.decode


@flint.entry(axes=("data", "model"))
def prefill(
    mesh: AbstractMesh, *, model: str = "8b", prompts: int = 8, prompt: int = 4096
) -> flint.Step:
    """Prompts to their first tokens and caches; requests over "data", heads over "model"."""
    layout = disaggregated_jax.Layout(mesh, ("model",))
    return disaggregated_jax.make_prefill(
        layout, disaggregated_jax.CONFIGS[model], prompts * mesh.shape["data"], prompt
    )
