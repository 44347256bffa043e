"""Models that say the next token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.sharing.corpus.parts import cross_entropy, embedded, rms_norm
from benchmarks.sharing.corpus.run import Input, Model, Run, Weight
from benchmarks.sharing.corpus.sizes import Options


def token_input(o: Options, run: Run) -> Input:
    """Tokens (batch, length)."""
    return Input((run.plan.batch, o["length"]), ("batch", "length"), "int32")


def language_model(o: Options, run: Run, weights: Any, forward: Callable[..., Any]) -> Model:
    """The model whose `forward(params, tokens)` gives logits."""

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return cross_entropy(run, forward(params, tokens), targets)

    words = token_input(o, run)
    return Model(forward, loss, weights, (words,), (words,))


def layered_model(o: Options, run: Run, layer: Any, block: Callable[..., Any]) -> Model:
    """Blocks between a table of tokens and a head; `layer` are the weights of one."""
    dim = o["dim"]
    weights = {
        "embed": Weight((o["vocab"], dim), ("vocab", "embed")),
        "layers": run.stack(o["layers"], layer),
        "out_scale": Weight((dim,)),
        "head": Weight((dim, o["vocab"]), ("embed", "vocab")),
    }

    def forward(params: Any, tokens: Any) -> Any:
        x = run.layers(block, embedded(run, params["embed"], tokens), params["layers"])
        logits = rms_norm(x, params["out_scale"]) @ params["head"]
        return run.pin(logits, "batch", "length", "vocab")

    return language_model(o, run, weights, forward)
