"""LLMServingSim's profile bundle (github.com/casys-kaist/LLMServingSim, commit 5daddb2): llmservingsim.md."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.export.passes import COMMUNICATION, REST, PassTimes
from flint.tools.serve.export.table import csv_of, grid, readme, steps

#: Layers of the catalogs without a product; they have no time of their own.
_WITHOUT = ("embedding", "qk_norm", "rotary_emb", "act_fn", "final_layernorm")


def llmservingsim_files(times: PassTimes) -> dict[str, bytes]:
    """The bundle's files by path, from the folder of the hardware. Raises FlintError FL897 for experts."""
    if times.model.has_experts:
        raise FlintError(
            "FL897",
            f"{times.model.name} has experts, whose times LLMServingSim wants by the number of experts that "
            "a pass meets: a surface does not have it",
            help="export them for vidur or sglang",
        )
    variant = f"{times.surface.setting.cluster.name}/{times.model.name}/{_variant(times)}"
    folder = f"{variant}/tp{times.devices}"
    tokens = steps(times.rules.max_tokens)
    sequences = grid(1, times.rules.max_sequences, 1.1)
    layers, head = times.by_tokens(tokens), times.by_sequences(sequences)
    layers = {name: ns / times.model.num_hidden_layers for name, ns in layers.items()}
    sampler = sum((ns for name, ns in head.items() if name != "lm_head"), np.zeros(len(sequences)))
    layers["layernorm"] = (layers.pop(REST) + layers.pop("lm_head")) / 2
    comm_us = layers.pop(COMMUNICATION)[-1] * times.model.num_hidden_layers / 1e3
    layers |= dict.fromkeys(_WITHOUT, np.zeros(len(tokens)))
    per_sequence = {"lm_head": head["lm_head"], "sampler": sampler}
    return {
        f"{variant}/meta.yaml": _meta(times.rules).encode(),
        f"{folder}/dense.csv": _by_layer("tokens", tokens, layers),
        f"{folder}/per_sequence.csv": _by_layer("sequences", sequences, per_sequence),
        f"{folder}/attention.csv": csv_of(_ATTENTION, _attention(times)),
        "README.md": readme("llmservingsim", **times.facts, comm_us=comm_us),
    }


def _variant(times: PassTimes) -> str:
    """The folder that LLMServingSim looks in, by the types of weights and cache."""
    m = times.model
    elements = 2 * m.num_hidden_layers * max(m.kv_heads // times.devices, 1) * m.head_size
    narrow = times.surface.memory.token_bytes < 1.5 * elements
    return "bf16-kvfp8" if narrow else "bf16"


def _by_layer(axis: str, counts: list[int], layers: dict[str, Float64s]) -> bytes:
    rows = (
        (name, count, _us(ns[at]))
        for name, ns in sorted(layers.items())
        for at, count in enumerate(counts)
    )
    return csv_of(("layer", axis, "time_us"), rows)


def _us(ns: float) -> float:
    return round(ns / 1e3, 3)


_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")


def _attention(times: PassTimes) -> Iterable[tuple[int, int, int, int, float]]:
    """Rows of every chunk with every number of decodes; without one of them its context is 0."""
    new, before = grid(1, times.rules.max_tokens, 1.2), [0, *grid(128, times.longest, 2)]
    sequences, context = grid(1, times.rules.max_sequences, 1.5), grid(16, times.longest, 2)
    layers = times.model.num_hidden_layers
    prompts = times.prompts(new, before) / layers
    decodes = times.decodes(sequences, context) / layers
    alone = times.decodes_alone(sequences, context, sequences) / layers
    of_chunks = [(n, c, prompts[i, j]) for i, n in enumerate(new) for j, c in enumerate(before)]
    for n, c, prompt_ns in [(0, 0, 0.0), *of_chunks]:
        if n:
            yield (n, c, 0, 0, _us(prompt_ns))
        for i, s in enumerate(sequences):
            for j, k in enumerate(context):
                yield (n, c, s, k, _us(prompt_ns + decodes[i, j] if n else alone[i, j]))


def _meta(rules: EngineRules) -> str:
    limits = f"{{max_num_batched_tokens: {rules.max_tokens}, max_num_seqs: {rules.max_sequences}}}"
    return f"engine_effective: {limits}\nskew_fit: {{enabled: false}}\n"
