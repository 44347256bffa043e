"""Llama as NeMo's submissions to MLPerf Training 5.1 train it: a script of Megatron-core.

    flint capture benchmarks/models/nemo_llama.py --mesh data=9,context=8,model=1 --world \\
        -c gb200-nvl72 -- --model lora --cp 8 --precision fp8 --fp8-attention

It is recorded, with Transformer Engine stood in for. `--model lora` is Llama-2-70B whose weights are
frozen, kept in 8 bits, with adapters of rank 16 beside the products into and out of attention (NeMo's
LoRA, dropout before); the others train all weights, with Megatron's distributed optimizer, gradients
and parameters communicated behind the layers.

    ring        context parallelism of LoRA by a ring, as in NeMo before 25.09, instead of all-to-alls
    precision   bf16; fp8: "delayed" scaling (LoRA) or by each tensor ("tensorwise"); fp4: nvfp4
    Sizes: arXiv 2307.09288 and 2407.21783. Options: the submissions' config_*.sh.
"""

import argparse
import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

SIZES = {
    "8b": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 14_336},
    "lora": {"num_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "ffn_hidden_size": 28_672},
}  # fmt: skip
RANK, SEQUENCE = 16, 8192


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, default="8b")
    for name in ("tp", "cp", "micro-batch", "microbatches"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("layers", "recomputed"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--precision", choices=("bf16", "fp8", "fp4"), default="fp8")
    for name in ("fp8-attention", "narrow-weights", "ring"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def configuration(o: argparse.Namespace) -> TransformerConfig:
    lora = o.model == "lora"
    scaled = {
        "bf16": {},
        "fp8": {"fp8": "hybrid", "fp8_recipe": "delayed" if lora else "tensorwise"},
        "fp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
    }[o.precision]
    size = SIZES[o.model] | ({"num_layers": o.layers} if o.layers else {})
    again = {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": o.recomputed,
    }
    scaled |= again if o.recomputed else {}
    return TransformerConfig(
        **size,
        **scaled,
        num_query_groups=8,
        tensor_model_parallel_size=o.tp,
        context_parallel_size=o.cp,
        cp_comm_type="p2p" if o.ring or not lora else "a2a",
        sequence_parallel=o.tp > 1,
        params_dtype=torch.bfloat16,
        bf16=True,
        **{"fp4_param" if o.precision == "fp4" else "fp8_param": o.narrow_weights},
        fp8_dot_product_attention=o.fp8_attention,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_te_activation_func=True,
        apply_rope_fusion=True,
        fused_single_qkv_rope=True,
        gradient_accumulation_fusion=not lora,
        cross_entropy_loss_fusion=not lora,
        cross_entropy_fusion_impl="te",
    )


class Adapted(nn.Module):
    """A linear layer with an adapter beside it; `column` if its results are split over ranks."""

    def __init__(self, base: nn.Module, config: TransformerConfig, *, column: bool) -> None:
        super().__init__()
        self.base, self.column, self.split = base, column, config.sequence_parallel
        given = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        out, wide = base.weight.shape[0], base.in_features
        self.narrow = nn.Linear(wide, RANK, **given)
        self.wide = nn.Linear(RANK, out, **given)
        if column:
            base.return_layernorm_output = True

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        out, bias = self.base(x)
        if self.column:
            out, x = out
        low = self.narrow(torch.nn.functional.dropout(x, 0.1))
        if self.split and self.column:
            low = gather_from_sequence_parallel_region(low)
        elif self.split:
            low = reduce_scatter_to_sequence_parallel_region(low)
        return out + 2.0 * self.wide(low), bias


def model_of(o: argparse.Namespace, config: TransformerConfig) -> nn.Module:
    model = GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(use_te_activation_func=True),
        vocab_size=32_000 if o.model == "lora" else 128_256,
        max_sequence_length=SEQUENCE,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    model = model.cuda()
    if o.model == "lora":
        model.requires_grad_(False)
        for layer in model.decoder.layers:
            attention = layer.self_attention
            attention.linear_qkv = Adapted(attention.linear_qkv, config, column=True)
            attention.linear_proj = Adapted(attention.linear_proj, config, column=False)
    reduction = DistributedDataParallelConfig(
        use_distributed_optimizer=o.model != "lora",
        overlap_grad_reduce=o.model != "lora",
        overlap_param_gather=o.model != "lora",
        fp8_param_gather=o.narrow_weights and o.model != "lora",
        bucket_size=768_000_000 if o.model == "8b" else None,
    )
    return DistributedDataParallel(config, reduction, model)


def main() -> None:
    o = options()
    if o.precision == "fp4" and o.fp8_attention:
        os.environ["NVTE_DPA_FP8_RECIPE"] = (
            "DelayedScaling" if o.model == "lora" else "Float8CurrentScaling"
        )
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(backend="nccl")
    parallel_state.initialize_model_parallel(o.tp, context_parallel_size=o.cp)
    model_parallel_cuda_manual_seed(1)
    config = configuration(o)
    model = model_of(o, config)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = model.no_sync
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=4e-4,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=o.model != "lora",
            overlap_param_gather=o.model != "lora",
        ),
        [model],
    )
    length = SEQUENCE // o.cp

    def forward(_, module):
        tokens = torch.randint(0, 32_000, (o.micro_batch, length), device="cuda")
        positions = torch.arange(length, device="cuda").unsqueeze(0)

        def loss(output):
            mean = output.float().mean()
            return mean, {"loss": mean.detach()}

        return module(tokens, positions, None, labels=tokens), loss

    for _ in range(3):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([]),
            model=model,
            num_microbatches=o.microbatches,
            seq_length=SEQUENCE,
            micro_batch_size=o.micro_batch,
            forward_only=False,
        )
        optimizer.step()


main()
