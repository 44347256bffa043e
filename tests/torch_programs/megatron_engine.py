"""A step of Megatron-core's GPT with Transformer Engine's layers, as its own examples write it."""

import argparse
import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY, EXPERTS = 2, 512, 8, 1024, 4096, 4


def configuration(experts: bool) -> TransformerConfig:
    mixture = {
        "num_moe_experts": EXPERTS,
        "moe_router_topk": 2,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "moe_ffn_hidden_size": 2 * HIDDEN,
        "moe_permute_fusion": True,
    }
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=HEADS // 2,
        ffn_hidden_size=4 * HIDDEN,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **(mixture if experts else {}),
    )


def loss_of(out):
    loss = out.float().mean()
    return loss, {"loss": loss.detach()}


def forward(batches, model):
    tokens = torch.randint(0, VOCABULARY, (1, LENGTH), device="cuda")
    positions = torch.arange(LENGTH, device="cuda").unsqueeze(0)
    return model(tokens, positions, None, labels=tokens), loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", action="store_true")
    experts = parser.parse_args().experts
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    sizes = {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1} if experts else {}
    parallel_state.initialize_model_parallel(2, **sizes)
    model_parallel_cuda_manual_seed(1)
    config = configuration(experts)
    layer = get_gpt_layer_with_transformer_engine_spec(
        num_experts=EXPERTS if experts else None, moe_grouped_gemm=experts
    )
    model = GPTModel(config, layer, VOCABULARY, LENGTH, position_embedding_type="rope")
    options = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=True
    )
    model = DistributedDataParallel(config, options, model.cuda().bfloat16())
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
        ),
        [model],
    )
    config.finalize_model_grads_func = finalize_model_grads
    run = get_forward_backward_func()
    for _ in range(3):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        run(
            forward_step_func=forward,
            data_iterator=iter([]),
            model=[model],
            num_microbatches=1,
            seq_length=LENGTH,
            micro_batch_size=1,
            forward_only=False,
        )
        optimizer.step()


main()
