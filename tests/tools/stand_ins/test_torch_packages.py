"""Packages that are not installed: what stands in for them is found, and costs what they cost."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_world.packages.finder import WITHOUT, packages_found
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import CAUSAL, Collective, Flag, Kind, Phase, Program, Row
from flint.tools.stand_ins.transformer_engine import attention

MESH = Mesh(("data", "model"), (2, 2))
ATTENDS = (OpClass.ATTENTION, OpClass.ATTENTION_BACKWARD)
needs_no_engine = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is not None,
    reason="Transformer Engine is installed",
)
LAYER = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling
    from transformer_engine.pytorch.optimizers import FusedAdam
    group = dist.new_group([0, 1])
    split = dict(sequence_parallel=True, tp_group=group, params_dtype=torch.bfloat16)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = te.LayerNormLinear(
                64, 192, parallel_mode="column", normalization="RMSNorm", bias=False, **split
            )
            self.attend = te.DotProductAttention(2, 16)
            self.proj = te.Linear(64, 32, parallel_mode="row", bias=False, **split)

        def forward(self, x):
            qkv = self.qkv(x)
            qkv = qkv.view(*qkv.shape[:2], 2, 48)
            return self.proj(self.attend(*qkv.split(16, -1)))

    layer = Layer()
    optimizer = FusedAdam(layer.parameters())
    for _ in range(3):
        x = torch.empty(16, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with te.fp8_autocast(enabled=FP8, fp8_recipe=DelayedScaling()):
            y = layer(x)
        y.sum().backward()
        optimizer.step()
"""


def recorded(tmp_path: Path, program: str) -> tuple[Program, tuple[str, ...]]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(program))
    (found,) = record([Job(rank=0, world_size=4, script=str(script), steps=2)])
    return build_program(found, MESH).program, found.warnings


def rows_of(program: Program, *kinds: Kind) -> list[Row]:
    return [program.row(i) for i in range(len(program)) if program.kind[i] in kinds]


@needs_no_engine
@pytest.mark.parametrize("fp8", [False, True])
def test_a_split_layer_of_transformer_engine(tmp_path: Path, fp8: bool) -> None:
    program, warnings = recorded(tmp_path, LAYER.replace("FP8", str(fp8)))
    assert any("stand-ins were recorded: transformer_engine 2.8.0" in w for w in warnings)
    rows = rows_of(program, Kind.COMPUTE)
    m = 2 * 16 * 2  # rows of both ranks
    products = Counter((r.dims, r.flops) for r in rows if r.op is OpClass.MATMUL)
    expected: Counter[Any] = Counter()
    for n, k in ((96, 64), (32, 32)):  # columns of qkv, rows of proj
        for dims in ((1, m, n, k), (1, m, k, n), (1, n, k, m)):
            expected[dims, 2 * m * n * k] += 1
    assert products == expected
    (forward,) = [r for r in rows if r.op is OpClass.ATTENTION]
    (backward,) = [r for r in rows if r.op is OpClass.ATTENTION_BACKWARD]
    heads, length, size = 2 * 2, 32, 16
    assert forward.mask == backward.mask == CAUSAL
    assert forward.flops == 4 * heads * length * length * size
    assert backward.flops == 10 * heads * length * length * size
    q = m * 2 * size * 2
    assert (forward.operand_bytes, forward.result_bytes) == (3 * q, q + heads * length * 4)
    assert backward.result_bytes == 3 * q
    item = 1 if fp8 else 2
    sent = [(r.collective, r.phase, r.comm_bytes) for r in rows_of(program, Kind.COLLECTIVE)]
    gather, scatter = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    assert sent == [
        (gather, Phase.FORWARD, 32 * 64 * item),
        (scatter, Phase.FORWARD, m * 32 * 2),
        (gather, Phase.BACKWARD, 32 * 32 * item),  # the gradient of proj's result
        (gather, Phase.BACKWARD, 32 * 64 * item),  # qkv's input again
        (scatter, Phase.BACKWARD, m * 64 * 2),
    ]
    quantized = [r for r in rows if r.opcode == "te.quantize"]
    assert len(quantized) == (6 if fp8 else 0)
    assert {r.product for r in rows if r.op is OpClass.MATMUL} == (
        {"float8_e4m3fn", "float8_e5m2"} if fp8 else {"bfloat16"}
    )
    parameters = 96 * 64 + 32 * 32 + 64
    (update,) = [r for r in rows if r.opcode == "amp_C.adam"]
    assert update.flops == 14 * parameters
    assert update.operand_bytes == parameters * (2 + 2 + 4 + 4)
    assert update.result_bytes == parameters * (2 + 4 + 4)


EXPERTS = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    import transformer_engine.pytorch as te
    import fused_weight_gradient_mlp_cuda, amp_C, torch._inductor.config
    torch._inductor.config._micro_pipeline_tp = True
    from apex.multi_tensor_apply import multi_tensor_applier
    from apex.normalization import FusedLayerNorm
    from deep_ep import Buffer

    def exchange(x):
        buffer = Buffer(dist.group.WORLD)
        experts, weights = torch.empty(64, 2, dtype=torch.int64).cuda(), torch.empty(64, 2).cuda()
        _, _, counts, places, _ = buffer.get_dispatch_layout(experts, 8)
        options = dict(is_token_in_rank=places, num_tokens_per_expert=counts, async_finish=True)
        rows, _, _, sizes, handle, event = buffer.dispatch(
            x, topk_idx=experts, topk_weights=weights, **options
        )
        event.current_stream_wait()
        assert sizes == [32 * 2, 32 * 2]  # 4 ranks x 64 tokens x 2 of 8 experts
        return buffer.combine(rows, handle)[0]

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = FusedLayerNorm(64).cuda()
            options = dict(bias=False, fuse_wgrad_accumulation=True, params_dtype=torch.float32)
            self.layers = te.GroupedLinear(4, 64, 32, **options)
            for p in self.layers.parameters():
                p.main_grad = torch.zeros(p.shape, device="cuda")
                p.grad_added_to_main_grad = False

        def forward(self, x):
            return self.layers(self.norm(x), [8, 8, 8, 8])

    experts = Experts()
    optimizer = torch.optim.SGD(experts.norm.parameters(), foreach=False)
    for _ in range(3):
        experts(torch.empty(32, 64, device="cuda")).sum().backward()
        w = torch.empty(32, 64, device="cuda")
        grad = torch.empty(8, 32, device="cuda")
        fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(torch.empty(8, 64, device="cuda"), grad, w)
        flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        assert exchange(torch.empty(64, 32, device="cuda")).shape == (64, 32)
        assert multi_tensor_applier.available, "programs take another way without it"
        multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, [[w, grad]], False)
        optimizer.step()
"""


@needs_no_engine
def test_experts_and_extensions_of_apex(tmp_path: Path) -> None:
    program, warnings = recorded(tmp_path, EXPERTS)
    assert any(w.startswith("async tensor parallelism was not followed") for w in warnings)
    rows = rows_of(program, Kind.COMPUTE)
    by_name = {r.opcode: r for r in rows}
    weight = 64 * 32
    assert by_name["te.grouped_gemm"].dims == (4, 8, 32, 64)
    assert by_name["te.grouped_gemm"].operand_bytes == 4 * (32 * 64 + 4 * weight)
    into = by_name["te.grouped_wgrad_"]
    assert into.dims == (4, 32, 64, 8)
    assert into.flops == 2 * 32 * 64 * 32 + 4 * weight  # and added to what is there
    assert into.result_bytes == 4 * 4 * weight
    added = by_name["apex.wgrad_gemm_accum"]
    assert (added.dims, added.flops) == ((1, 32, 64, 8), 2 * 32 * 64 * 8 + weight)
    assert added.result_bytes == 4 * weight
    assert by_name["amp_C.l2norm"].flops == 2 * (weight + 8 * 32)
    assert {r.op for r in rows if r.opcode.startswith("aten.native_layer_norm")} == {OpClass.NORM}
    # of 4 ranks with 2 of 8 experts a token of 2 reaches 4 (1 - C(6, 2) / C(8, 2)) = 13 / 7
    reached = round(64 * 13 / 7)
    sent = [r.comm_bytes for r in rows_of(program, Kind.COLLECTIVE)]
    assert sent == [reached * n for n in (32 * 4, 2 * 8, 2 * 4, 32 * 4)]
    assert by_name["deep_ep.reduce_rows"].flops == reached * 32


def test_only_the_program_finds_them_and_only_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    with packages_found(told.append):
        assert importlib.util.find_spec("amp_C") is not None
        import amp_C

        assert amp_C.multi_tensor_scale
        assert importlib.util.find_spec("no_such_package") is None
        assert importlib.metadata.version("transformer-engine")
        assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
    assert len(told) == 1
    assert importlib.util.find_spec("amp_C") is None
    monkeypatch.setenv(WITHOUT, "amp_C")
    with packages_found(told.append):
        assert importlib.util.find_spec("amp_C") is None


RING = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    import transformer_engine.pytorch as te
    group = dist.new_group([0, 1, 2, 3])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(16, device="cuda"))
            self.attend = te.DotProductAttention(4, 16, cp_group=group)

        def forward(self, x):
            q = x * self.weight
            return self.attend(q, q, q)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    for _ in range(3):
        model(torch.empty(32, 1, 4, 16, device="cuda")).sum().backward()
        optimizer.step()
"""


@needs_no_engine
def test_a_ring_of_ranks_shares_a_sequence(tmp_path: Path) -> None:
    program, _ = recorded(tmp_path, RING)
    rows = rows_of(program, Kind.COMPUTE)
    own, half = (4, 32, 32, 16), (4, 16, 32, 16)  # rank 0: later queries see all keys of others
    forward = [(r.dims, r.mask) for r in rows if r.op is OpClass.ATTENTION]
    assert forward == [(own, CAUSAL), (half, 0), (half, 0), (half, 0)]
    backward = [(r.dims, r.mask) for r in rows if r.op is OpClass.ATTENTION_BACKWARD]
    assert backward == [(half, 0), (half, 0), (half, 0), (own, CAUSAL)]
    pair = 2 * 32 * 4 * 16 * 4
    sent = [r.comm_bytes for r in rows_of(program, Kind.SEND)]
    # keys and values three times on; back three times, with gradients, which start a step later
    assert sent == [pair] * 3 + [pair, 2 * pair, 2 * pair, pair]


OVER_HEADS = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, NVFP4BlockScaling
    recipe = RECIPE
    with te.fp8_model_init(recipe=recipe):
        layer = te.Linear(64, 64, bias=False, params_dtype=torch.bfloat16).requires_grad_(False)
    attend = te.DotProductAttention(8, 8, cp_group=dist.group.WORLD, cp_comm_type="a2a")
    x = torch.nn.Parameter(torch.empty(16, 32, 64, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([x])
    for _ in range(3):
        with te.fp8_autocast(fp8_recipe=recipe):
            q = layer(x).view(16, 32, 8, 8)
            attend(q, q, q).sum().backward()
        optimizer.step()
"""


@needs_no_engine
@pytest.mark.parametrize(
    ("recipe", "product", "scores", "item"),
    [
        ("DelayedScaling(fp8_dpa=True)", "float8_e4m3fn", "float8_e4m3fn", 1),
        ("NVFP4BlockScaling()", "f4E2M1FN", "bfloat16", 2),
    ],
)
def test_narrow_weights_and_a_sequence_that_is_exchanged_for_heads(
    tmp_path: Path, recipe: str, product: str, scores: str, item: int
) -> None:
    """Frozen weights are never quantized again; all-to-alls carry what attention multiplies."""
    program, _ = recorded(tmp_path, OVER_HEADS.replace("RECIPE", recipe))
    rows = rows_of(program, Kind.COMPUTE)
    products = [(r.product, r.dims) for r in rows if r.op is OpClass.MATMUL]
    assert products[0] == (product, (1, 16 * 32, 64, 64))
    assert [dims for _, dims in products] == [(1, 16 * 32, 64, 64)] * 2  # no weight's gradient
    heads = 32 * 8 // 4
    attention = {r.op: (r.product, r.dims) for r in rows if r.op in ATTENDS}
    assert attention[OpClass.ATTENTION] == (scores, (heads, 64, 64, 8))
    sent = [r.comm_bytes for r in rows_of(program, Kind.COLLECTIVE)]
    assert sent == [16 * 32 * 64 * item] * 8
    (quantized,) = [r for r in rows if r.opcode == "te.quantize" and r.phase is Phase.FORWARD][:1]
    assert quantized.operand_bytes == 16 * 32 * 64 * 2  # what comes in, not the weight


def test_what_cannot_be_recorded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "size_of", lambda group: 2)
    with pytest.raises(FlintError, match="context parallelism by all_gather") as caught:
        attention.DotProductAttention(2, 16, cp_group="two ranks", cp_comm_type="all_gather")
    assert caught.value.code == "FL235"


ATTENTION = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
    from flash_attn import flash_attn_with_kvcache
    from torch.nn.attention.varlen import varlen_attn
    from flash_attn.layers.rotary import apply_rotary_emb
    from flash_attn.ops.triton.layer_norm import rms_norm_fn
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    def tensor(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    class Model(torch.nn.Module):
        def forward(self, q, k):
            x = flash_attn_func(q, k, k, causal=True)
            x = x + flash_attn_func(q, k, k, window_size=(15, 0), causal=True)
            x = x + flash_attn_qkvpacked_func(torch.stack([q, q, q], 2))
            packed, ends = q.flatten(0, 1), torch.tensor([0, 16, 128], dtype=torch.int32)
            y = flash_attn_varlen_func(packed, packed, packed, ends, ends, 112, 112)
            told = ends.cuda()
            y = y + varlen_attn(packed, packed, packed, told, told, 112, 112, window_size=(-1, 0))
            ends = torch.empty_like(told)
            y = y + varlen_attn(packed, packed, packed, ends, ends, 112, 112)
            x = x + y.view(x.shape)
            mask = BlockDiagonalMask.from_seqlens([16, 48])
            x = x + memory_efficient_attention(q, q, q, mask)
            x = apply_rotary_emb(x, self.cos, self.cos)
            return rms_norm_fn(x, self.weight, None, residual=q)

    model = Model()
    model.weight, model.cos = tensor(16), tensor(64, 8).detach()
    optimizer = torch.optim.SGD([model.weight], foreach=False)
    for _ in range(3):
        model(tensor(2, 64, 4, 16), tensor(2, 64, 2, 16)).sum().backward()
        with torch.no_grad():
            cache, new = tensor(2, 128, 2, 16), tensor(2, 1, 2, 16)
            flash_attn_with_kvcache(tensor(2, 1, 4, 16), cache, cache, new, new, cache_seqlens=99)
        optimizer.step()
"""


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is not None for name in ("flash_attn", "xformers")),
    reason="flash-attn or xFormers is installed",
)
def test_attention_of_packages(tmp_path: Path) -> None:
    program, warnings = recorded(tmp_path, ATTENTION)
    assert any(
        "2 sequences of packed attention are assumed to be equally long" in w for w in warnings
    )
    rows = rows_of(program, Kind.COMPUTE)
    forward = [(r.dims, r.mask) for r in rows if r.op is OpClass.ATTENTION]
    full = (2 * 4, 64, 64, 16)
    # keys of two sequences: (16 x 16 + 48 x 48) / 64 on average
    blocks = (2 * 4 * 2, 32, 40, 16)
    cache = (2 * 4, 1, 100, 16)
    # as many queries and scores as 4 heads of 16 and of 112 tokens have, which the program says
    packed = (5, 100, 100, 16)
    assert forward == [
        *((full, CAUSAL), (full, 16), (full, 0), (packed, 0), (packed, CAUSAL), (full, 0)),
        *((blocks, 0), (cache, 0)),
    ]
    once = 4 * 16 * 4 * (16 * 16 + 112 * 112)
    found = [r for r in rows if r.dims == packed]
    assert [r.flops for r in found] == [once, once, 5 * once // 2, 5 * once // 2]
    assert all(r.product and r.flags & Flag.LAUNCHED for r in found)
    assert {r.opcode for r in found} == {
        *(f"flash_attn.attention_{way}" for way in ("forward", "backward")),
        *(f"torch_attn._varlen_attn{way}[causal]" for way in ("", "_backward")),
    }
    backward = [(r.dims, r.mask) for r in rows if r.op is OpClass.ATTENTION_BACKWARD]
    assert sorted(backward) == sorted(forward[:-1])
    assert {r.flops for r in rows if r.op is OpClass.ATTENTION and r.dims == full} == {
        4 * 8 * 64 * 64 * 16
    }
    (cached,) = [r for r in rows if r.dims == cache]
    assert cached.result_bytes == 2 * (2 * 4 * 16 + 2 * 2 * 2 * 16)
    elements = 2 * 64 * 4 * 16
    by_name = {r.opcode: r for r in rows}
    assert by_name["flash_attn.rotary"].flops == 3 * elements
    norm = by_name["flash_attn.add_norm"]
    assert (norm.op, norm.flops) == (OpClass.NORM, 5 * elements)
    assert norm.operand_bytes == 2 * (2 * elements + 16)
    assert norm.result_bytes == 4 * elements + 4 * elements // 16


TRITON = """
    import torch, torch.distributed as dist
    import flint
    dist.init_process_group("nccl")
    import triton, triton.language as tl
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    @triton.jit
    def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        to = out_ptr + offsets
        tl.store(to, x + tl.load(y_ptr + offsets))

    class Remembering(triton.runtime.autotuner.Autotuner):
        def __init__(
            self, fn, arg_names, configs, key, reset_to_zero, restore_value, pre_hook=None,
            post_hook=None, prune_configs_by=None, warmup=None, rep=None, use_cuda_graph=False,
            do_bench=None, cache_results=False,
        ):
            super().__init__(
                fn, arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
                prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results,
            )
            assert (self.keys, self.cache, self.base_fn) == (["n"], {}, fn)

        def run(self, *args, **kwargs):
            return super().run(*args, **kwargs)

    def remembering(configs, key):
        return lambda fn: Remembering(fn, fn.arg_names, configs, key, None, None)

    @remembering([triton.Config({"BLOCK": 256}, num_ctas=1)], key=["n"])
    @triton.jit
    def halve_kernel(x_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) / 2)

    @flint.cost_of("halve_kernel")
    def cost(call):
        assert call.attributes["grid"] == [4] and call.attributes["BLOCK"] == 256
        return 3 * call.results[0].num_elements

    @torch.library.triton_op("mine::halved", mutates_args={})
    def halved(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        torch.library.wrap_triton(halve_kernel)[(4,)](x, x.numel())
        return x

    halved.register_autograd(lambda ctx, grad: halved(grad))

    def window(b, h, q, k):
        return (q >= k) & (q - k < 32)

    class Model(torch.nn.Module):
        def forward(self, x):
            out = torch.empty_like(x)
            add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
                x, self.other, out, x.numel(), BLOCK=128
            )
            q = halved(x + out).view(1, 1, 64, 16)
            mask = create_block_mask(window, None, None, 64, 64, "cuda", BLOCK_SIZE=16)
            return flex_attention(q, q, q, block_mask=mask) * self.weight

    model = Model()
    model.weight = torch.nn.Parameter(torch.empty(16, device="cuda"))
    model.other = torch.empty(1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    for _ in range(3):
        model(torch.empty(1024, device="cuda", requires_grad=True)).sum().backward()
        optimizer.step()
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_kernels_in_triton_and_blocks_of_flex_attention(tmp_path: Path) -> None:
    program, warnings = recorded(tmp_path, TRITON)
    assert any("Triton kernel add_kernel (train.py:8) has no cost" in w for w in warnings)
    rows = rows_of(program, Kind.COMPUTE)
    (added,) = [r for r in rows if r.opcode == "triton.add_kernel"]
    assert added.flags & Flag.UNPRICED
    assert (added.operand_bytes, added.result_bytes) == (2 * 4096, 4096)
    halved = [r for r in rows if r.opcode == "triton.halve_kernel"]
    assert [r.phase for r in halved] == [Phase.FORWARD, Phase.BACKWARD]
    assert {(r.flops, r.operand_bytes, r.result_bytes) for r in halved} == {(3 * 1024, 4096, 4096)}
    # of 4 x 4 blocks of 16: 1 + 2 + 3 + 3 (a window of 32 reaches into two blocks before)
    scores = 9 * 16 * 16
    forward, backward = (
        next(r for r in rows if r.opcode == f"flex.attention_{way}")
        for way in ("forward", "backward")
    )
    assert (forward.dims, forward.flops) == ((1, 64, scores // 64, 16), 4 * scores * 16)
    assert backward.flops == 10 * scores * 16
