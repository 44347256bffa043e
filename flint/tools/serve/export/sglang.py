"""The table of SGLang's simulator (github.com/sgl-project/sglang, tools/sglang-simulator, commit 1b2e728d).

src/sglang_simulator/time_predictor/replay.py reads one JSON object: `json.dumps` of the sorted list of
[new tokens, tokens in the cache] of a pass's sequences, to seconds. A pass that is not in it is, with
`miss_strategy` "knn", the mean of the `miss_knn_k` nearest by sequences, new tokens and cached tokens.
"""

from __future__ import annotations

import json

from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.export.passes import longest_of
from flint.tools.serve.export.table import grid, readme
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.surface.surface import Surface


def sglang_files(surface: Surface, rules: EngineRules) -> dict[str, bytes]:
    """The table, and a README."""
    longest, most = longest_of(surface), rules.max_sequences
    alone = [(s, c, ()) for s in grid(1, most, 1.4) for c in grid(16, longest, 1.4)]
    prompts = [PromptChunk(n, c) for n in grid(16, rules.max_tokens, 1.4) for c in (0, 1024, 8192)]
    beside = [(0, 0), *((s, c) for s in grid(1, most, 4) for c in grid(16, longest, 8))]
    table = {}
    for count, context, chunks in [*alone, *((*b, (p,)) for p in prompts for b in beside)]:
        key = json.dumps(sorted([[1, context]] * count + [[p.new, p.context] for p in chunks]))
        ns = surface.step_ns(count, count * context, chunks) + rules.host_ns
        table[key] = round(ns / 1e9, 9)
    text = json.dumps(table, indent=0)
    return {"replay_table.json": text.encode(), "README.md": readme("sglang")}
