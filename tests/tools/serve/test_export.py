"""Tables for other simulators, read as these read them, and held against the surface that they are of."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.export.export import ExportKind, export
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.surface.surface import Surface, surface_of

LAYERS = 2
CONFIG = {
    "_name_or_path": "meta-llama/Meta-Llama-3-8B", "hidden_size": 4096, "num_hidden_layers": LAYERS,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "hidden_act": "silu",
}  # fmt: skip
ENGINE = rules_of("vllm:max_num_seqs=64,max_num_batched_tokens=1024")
#: Sequences that decode, the context of each, and a chunk of a prompt: on rows and between them.
CHUNKS = (None, PromptChunk(9, 0), PromptChunk(337, 0), PromptChunk(700, 5000))
PASSES = [p for p in product((0, 1, 13, 50, 63), (17, 700, 20_000), CHUNKS) if p[0] or p[2]]
Rows = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def surface() -> Surface:
    captured = CaptureRequest("examples/serve_jax.py", mesh="2", settings=["num_layers=2"])
    found = surface_of(captured, EstimateRequest("h100-dgx"))
    return replace(found, sequence_ns=2000.0, most_new=1024, longest=32_768)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


def rows_of(path: Path, words: Sequence[str] = ()) -> Rows:
    """Columns; all but `words` are numbers, as pandas finds them."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(rows) == len({tuple(row.values()) for row in rows})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {n: np.array(c) if n in words else np.array(c, float) for n, c in columns.items()}


def gridded(rows: Rows, axes: Sequence[str], value: str) -> Callable[[Sequence[float]], float]:
    """The value of a place between rows, which fill a grid: straight on each axis."""
    points = [np.unique(rows[axis]) for axis in axes]
    order = np.lexsort([rows[axis] for axis in reversed(axes)])
    values = rows[value][order].reshape([len(p) for p in points])
    found = RegularGridInterpolator(points, values)
    return lambda at: float(found(np.array([at], float))[0])


def chosen(rows: Rows, mask: np.ndarray) -> Rows:
    return {name: column[mask] for name, column in rows.items()}


def test_vidur_adds_up(surface: Surface, config: Path, tmp_path: Path) -> None:
    export(surface, ExportKind.VIDUR, tmp_path / "out", engine=ENGINE, config=config)
    mlp = rows_of(tmp_path / "out/mlp.csv", ["use_gated_mlp"])
    attention = rows_of(tmp_path / "out/attention.csv")
    reduced = rows_of(tmp_path / "out/all_reduce.csv", ["collective"])
    overhead = rows_of(tmp_path / "out/cpu_overhead.csv", ["model_name"])
    # what the predictor filters by: the numbers of its own model and replica
    model = {"n_kv_head": 8, "n_embd": 4096, "num_tensor_parallel_workers": 2}
    of_mlp = {"n_head": 32, "n_expanded_embd": 14336, "vocab_size": 128256, "use_gated_mlp": "True"}
    for rows, wanted in (
        (mlp, model | of_mlp),
        (attention, model | {"n_q_head": 32, "block_size": 16}),
        (reduced, {"num_workers": 2, "devices_per_node": 2, "collective": "all_reduce"}),
        (overhead, {"model_name": CONFIG["_name_or_path"], "tensor_parallel_degree": 2}),
    ):
        assert all((rows[name] == value).all() for name, value in wanted.items())
    products = ["attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    operations = [*products, *norms, "mlp_act", "attn_rope", "add"]
    layer = np.sum([mlp[f"time_stats.{name}.median"] for name in operations], axis=0)
    assert all(mlp[f"time_stats.{name}.median"].all() for name in products)
    assert not attention["time_stats.attn_kv_cache_save.median"].any()
    is_decode = attention["prefill_chunk_size"] == 0
    axes, value = ("prefill_chunk_size", "kv_cache_size"), "time_stats.attn_prefill.median"
    prompts = gridded(chosen(attention, ~is_decode), axes, value)
    axes, value = ("batch_size", "kv_cache_size"), "time_stats.attn_decode.median"
    decodes = gridded(chosen(attention, is_decode), axes, value)
    of_batch = [
        c for name, c in overhead.items() if name.endswith(("_median", "ray_comm_time_mean"))
    ]
    assert len(of_batch) == 5
    host = np.sum(of_batch, axis=0)
    for count, context, chunk in PASSES:
        tokens = -(-(count + (chunk.new if chunk else 0)) // 8) * 8  # as Vidur rounds
        total = np.interp(tokens, mlp["num_tokens"], layer)
        reduce_ms = reduced["time_stats.all_reduce.median"]
        total += 2 * np.interp(tokens, reduced["size"] / 4096 / 2, reduce_ms)
        total += decodes((count, context)) if count else 0
        total += prompts((chunk.new, chunk.context)) if chunk else 0
        total = total * LAYERS + np.interp(count + bool(chunk), overhead["batch_size"], host)
        wanted = surface.step_ns(count, count * context, [chunk] if chunk else []) + ENGINE.host_ns
        # what few sequences that decode differ in from 8 is in all their passes, with prompts, too
        off = 0.025 if chunk and 0 < count < 8 else 0.01
        assert total * 1e6 == pytest.approx(wanted, rel=off), (count, context, chunk)


def test_llmservingsim_adds_up(surface: Surface, config: Path, tmp_path: Path) -> None:
    export(surface, ExportKind.LLMSERVINGSIM, tmp_path / "out", engine=ENGINE, config=config)
    variant = tmp_path / "out/h100-dgx/meta-llama/Meta-Llama-3-8B/bf16"
    assert "max_num_batched_tokens: 1024, max_num_seqs: 64" in (variant / "meta.yaml").read_text()
    names = ("dense", "per_sequence", "attention")
    dense, heads, attention = (rows_of(variant / f"tp2/{name}.csv", ["layer"]) for name in names)
    # profiler/models/llama.yaml: each block's layers, then what stands around them once
    block = ["layernorm", "qkv_proj", "rotary_emb", "o_proj", "layernorm"]
    block += ["gate_up_proj", "act_fn", "down_proj"]
    once = ["embedding", "final_layernorm"]

    def ns(rows: Rows, layer: str, axis: str, at: int) -> float:
        mine = chosen(rows, rows["layer"] == layer)
        return float(np.interp(at, mine[axis], mine["time_us"])) * 1e3

    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    with_chunk, with_decode = attention["prefill_chunk"] > 0, attention["n_decode"] > 0
    tables = {}
    for c, d in ((True, True), (True, False), (False, True)):
        mine = chosen(attention, (with_chunk == c) & (with_decode == d))
        tables[c, d] = gridded(mine, axes[0 if c else 2 : 4 if d else 2], "time_us")
    for count, context, chunk in PASSES:
        tokens = count + (chunk.new if chunk else 0)
        attended = tables[bool(chunk), count > 0]
        at = [*(chunk[:2] if chunk else ()), *([count, context] if count else [])]
        total = LAYERS * attended(at) * 1e3
        total += LAYERS * sum(ns(dense, layer, "tokens", tokens) for layer in block)
        total += sum(ns(dense, layer, "tokens", tokens) for layer in once)
        for layer in ("lm_head", "sampler"):
            total += ns(heads, layer, "sequences", count + bool(chunk))
        sent = surface.prefill.communication_ns(0, np.array([[1.0, tokens, 0.0]]))[0]
        wanted = (
            surface.step_ns(count, count * context, [chunk] if chunk else []) - sent
        )  # its network has the all-reduces
        assert total == pytest.approx(wanted, rel=0.01), (count, context, chunk)


def test_the_table_for_sglang_is_of_passes(surface: Surface, tmp_path: Path) -> None:
    export(surface, ExportKind.SGLANG, tmp_path, engine=ENGINE)
    table = json.loads((tmp_path / "replay_table.json").read_text())
    assert len(table) > 500
    for key, seconds in list(table.items())[::37]:
        pairs = json.loads(key)
        assert key == json.dumps(sorted(pairs))
        decodes = [past for new, past in pairs if new == 1]
        chunks = [PromptChunk(*pair) for pair in pairs if pair[0] > 1]
        wanted = surface.step_ns(len(decodes), sum(decodes), chunks) + ENGINE.host_ns
        assert seconds * 1e9 == pytest.approx(wanted, rel=1e-5)


def test_nothing_of_others_is_replaced(surface: Surface, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = export(surface, ExportKind.VIDUR, out, engine=ENGINE, config=config)
    before = {path: path.read_bytes() for path in written}
    written[0].write_bytes(b"measured")
    written[1].unlink()
    with pytest.raises(FlintError, match="FL508"):
        export(surface, ExportKind.VIDUR, out, engine=ENGINE, config=config)
    assert written[0].read_bytes() == b"measured" and not written[1].exists()
    export(surface, ExportKind.VIDUR, out, engine=ENGINE, config=config, force=True)
    assert before == {path: path.read_bytes() for path in written}


@pytest.mark.parametrize(
    ("change", "kind", "error"),
    [
        ({"hidden_size": None}, ExportKind.VIDUR, "FL896.*hidden_size"),
        ({"_name_or_path": "../../etc/x"}, ExportKind.LLMSERVINGSIM, "FL896.*no usable name"),
        ({"num_hidden_layers": 32}, ExportKind.VIDUR, "FL897.*of another model"),
        ({"hidden_size": 5120}, ExportKind.LLMSERVINGSIM, "FL897.*of another model"),
        ({"num_experts": 8}, ExportKind.LLMSERVINGSIM, "FL897.*has experts"),
        ("[]", ExportKind.VIDUR, "FL896.*no usable JSON object"),
        ("{", ExportKind.VIDUR, "FL896.*cannot read"),
        (None, ExportKind.VIDUR, "FL896.*say the numbers"),
    ],
)
def test_what_cannot_be_exported_is_said(
    surface: Surface, config: Path, change: dict[str, object] | str, kind: ExportKind, error: str
) -> None:
    config.write_text(json.dumps(CONFIG | change) if isinstance(change, dict) else change or "")
    path = None if change is None else config
    with pytest.raises(FlintError, match=error):
        export(surface, kind, config.parent / "out", engine=ENGINE, config=path)
    assert not (config.parent / "out").exists()
