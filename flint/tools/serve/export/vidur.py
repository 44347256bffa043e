"""Vidur's profiles (github.com/microsoft/vidur, commit 7d47513): vidur.md says what is in them."""

from __future__ import annotations

import numpy as np

from flint.ir.arrays import Float64s
from flint.tools.serve.export.passes import COMMUNICATION, PassTimes
from flint.tools.serve.export.table import csv_of, grid, readme

#: Operations of mlp.csv, and the product that is in some. What is no product is in `add`, others are empty.
_OPERATIONS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
_PRODUCTS = {
    "attn_pre_proj": "qkv_proj",
    "attn_post_proj": "o_proj",
    "mlp_up_proj": "gate_up_proj",
    "mlp_down_proj": "down_proj",
}
#: Vidur rounds the tokens of a pass up to a multiple of this.
_ROUND = 8


def vidur_files(times: PassTimes) -> dict[str, bytes]:
    """The tables and a README, by name."""
    tokens = list(range(_ROUND, times.rules.max_tokens + _ROUND, _ROUND))
    layer = {n: ns / times.model.num_hidden_layers for n, ns in times.by_tokens(tokens).items()}
    reduced = layer.pop(COMMUNICATION)
    named = {name: layer.pop(product) for name, product in _PRODUCTS.items()}
    named["add"] = sum(layer.values(), reduced if times.devices == 1 else 0 * reduced)
    found = {
        "mlp.csv": _mlp(times, tokens, named),
        "attention.csv": _attention(times),
        "cpu_overhead.csv": _overhead(times),
        "README.md": readme("vidur", **times.facts),
    }
    if times.devices > 1:
        found["all_reduce.csv"] = _all_reduce(times, tokens, reduced / 2)
    return found


def _ms(ns: float) -> float:
    return round(ns / 1e6, 9)


def _mlp(times: PassTimes, tokens: list[int], named: dict[str, Float64s]) -> bytes:
    m, none = times.model, np.zeros(len(tokens))
    columns = [named.get(name, none) for name in _OPERATIONS]
    return csv_of(
        ("num_tokens", *(f"time_stats.{name}.median" for name in _OPERATIONS)),
        ((count, *(_ms(c[at]) for c in columns)) for at, count in enumerate(tokens)),
        n_head=m.num_attention_heads,
        n_kv_head=m.kv_heads,
        n_embd=m.hidden_size,
        n_expanded_embd=m.intermediate_size,
        vocab_size=m.vocab_size,
        use_gated_mlp=m.gated,
        num_tensor_parallel_workers=times.devices,
    )


def _attention(times: PassTimes) -> bytes:
    m = times.model
    new = grid(1, times.rules.max_tokens, 1.08)
    context = [0, *grid(64, times.longest, 1.08, multiple=64)]
    sequences = grid(1, times.rules.max_sequences, 1.08)
    prompts = times.prompts(new, context) / m.num_hidden_layers
    rounded = [-(-count // _ROUND) * _ROUND for count in sequences]
    decodes = times.decodes_alone(sequences, context, rounded) / m.num_hidden_layers
    cells = [(i, j, c) for i in range(len(new)) for j, c in enumerate(context)]
    rows = [(1, new[i], c, _ms(prompts[i, j]), 0.0, 0.0) for i, j, c in cells]
    cells = [(i, j, c) for i in range(len(sequences)) for j, c in enumerate(context)]
    rows += [(sequences[i], 0, c, 0.0, _ms(decodes[i, j]), 0.0) for i, j, c in cells]
    operations = ("attn_prefill", "attn_decode", "attn_kv_cache_save")
    medians = (f"time_stats.{name}.median" for name in operations)
    return csv_of(
        ("batch_size", "prefill_chunk_size", "kv_cache_size", *medians),
        rows,
        n_embd=m.hidden_size,
        n_q_head=m.num_attention_heads,
        n_kv_head=m.kv_heads,
        block_size=times.rules.block_tokens,
        num_tensor_parallel_workers=times.devices,
    )


def _all_reduce(times: PassTimes, tokens: list[int], ns: Float64s) -> bytes:
    token_bytes = 2 * times.model.hidden_size
    return csv_of(
        ("size", "time_stats.all_reduce.median"),
        ((token_bytes * count, _ms(ns[at])) for at, count in enumerate(tokens)),
        num_workers=times.devices,
        devices_per_node=times.devices,
        collective="all_reduce",
    )


def _overhead(times: PassTimes) -> bytes:
    sequences = grid(1, times.rules.max_sequences, 1.08)
    head = sum(times.by_sequences(sequences).values(), np.zeros(len(sequences)))
    return csv_of(
        ("batch_size", "sampler_e2e_median"),
        ((count, _ms(head[at])) for at, count in enumerate(sequences)),
        model_name=times.model.name,
        tensor_parallel_degree=times.devices,
        schedule_median=0.0,
        prepare_inputs_e2e_median=_ms(times.rules.host_ns),
        process_model_outputs_median=0.0,
        ray_comm_time_mean=0.0,
    )
